"""Data for federations: readers, preparation of raw tables, and synthetic federations.

`formats` is the one door to files (`tables` behind it, which also reads those larger than memory) and `femnist` the one to
that data set, with `image_tables` for the form that needs an extra; `standardisation`, `scales`, `column_encoders` and
`preparation` turn raw columns into numbers from per-column aggregates alone; `plausibility` and `screening` look at agents
beside each other; `generators` draw federations from known `distributions`. `catalogue` lists real federations to be had
and fetches them from their `sources`.
"""

from kinfed.data.column_encoders import CategoryRule, NumericRule, TableSummary, summarise
from kinfed.data.distributions import Distribution, SyntheticFederation
from kinfed.data.femnist import read_femnist
from kinfed.data.formats import read_federation
from kinfed.data.generators import concept_shift, covariate_shift, feature_rotation, label_shift, no_structure
from kinfed.data.preparation import Preparation
from kinfed.data.standardisation import ColumnSums, Standardisation, column_sums

__all__ = [
    "CategoryRule",
    "ColumnSums",
    "Distribution",
    "NumericRule",
    "Preparation",
    "Standardisation",
    "SyntheticFederation",
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
