"""Data for federations: readers, preparation of raw tables, and synthetic federations.

`readers` is the one door to files (`tables`, `leaf` and `archive` behind it) and `femnist` the one to that data set, with
`image_tables` for the form that needs an extra; `standardisation`, `rules` and `preparation` turn raw columns into numbers
from per-column aggregates alone; `generators` draw federations from known `laws`. `catalogue` lists real federations to be
had and fetches them.
"""

from kinfed.data.femnist import read_femnist
from kinfed.data.generators import concept_shift, covariate_shift, feature_rotation, label_shift, no_structure
from kinfed.data.laws import Generated, Law
from kinfed.data.preparation import Preparation
from kinfed.data.readers import read_federation
from kinfed.data.rules import CategoryRule, NumericRule, TableSummary, summarise
from kinfed.data.standardisation import ColumnSums, Standardisation, column_sums

__all__ = [
    "CategoryRule",
    "ColumnSums",
    "Generated",
    "Law",
    "NumericRule",
    "Preparation",
    "Standardisation",
    "TableSummary",
    "column_sums",
    "concept_shift",
    "covariate_shift",
    "feature_rotation",
    "label_shift",
    "no_structure",
    "read_federation",
    "read_femnist",
    "summarise",
]
