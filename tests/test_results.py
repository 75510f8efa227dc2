"""What is committed under docs/results: one full run of every experiment, complete and in the form the code writes."""

import re
from pathlib import Path

import pandas as pd
import pytest

from kinfed.experiments import EXPERIMENTS

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_full_run_of_every_experiment_is_kept(name):
    folder = DOCS / "results" / name
    summary = (folder / "summary.md").read_text()
    claims = [line for line in summary.split("## Claims")[1].split("## Figures")[0].splitlines() if line.startswith("| ")]
    assert len(claims) > 1
    for line in claims[1:]:
        assert re.search(r"\| (holds|holds in part|does not hold) \|", line)
    assert f"`kinfed reproduce {name}" in summary
    assert "--quick" not in summary
    assert re.search(r"\d+ s on \d+ cores", summary)
    figures = re.findall(r"\]\((\S+\.png)\)", summary)
    assert figures
    for figure in figures:
        assert (folder / figure).exists()
        assert (folder / figure).with_suffix(".svg").exists()
    means = pd.read_csv(folder / "means.csv")
    assert list(means.columns) == ["experiment", "setting", "method", "repetition", "metric", "value"]
    assert means["repetition"].nunique() == int(re.search(r"\| repetitions \| (\d+) \|", summary)[1])


def test_links_of_the_documents_lead_somewhere():
    root = DOCS.parent
    for document in [*root.glob("*.md"), *DOCS.glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"
