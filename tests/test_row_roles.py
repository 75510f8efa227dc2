"""What rows have beside features and outcome: a group that stays together, a time, and a weight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import kinfed
from kinfed.backends.pooled import PooledAgents
from kinfed.data import Preparation, read_federation
from kinfed.federation import Agent, Federation


def table(n: int = 48, seed: int = 0) -> pd.DataFrame:
    """Patients of three visits each at two sites, with dates and weights."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "site": np.where(np.arange(n) % 2, "b", "a"),
            "patient": [f"{number:03d}" for number in np.arange(n) // 6],
            "visit": (pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.permutation(n), unit="D")).strftime("%Y-%m-%d"),
            "counts": rng.uniform(0.5, 2, n),
            "x": rng.normal(size=n),
            "z": rng.normal(size=n),
            "y": rng.normal(size=n),
        }
    )


ROLES = {"group_by": "patient", "time": "visit", "sample_weight": "counts"}


def read(frame: pd.DataFrame) -> Federation:
    return Federation.from_table(frame, "y", "site", **ROLES)


def held(agent: Agent) -> set[tuple[object, ...]]:
    """All rows, with everything that belongs to each."""
    return set(zip(agent.X[:, 0], agent.y, agent.group, agent.time, agent.weight, strict=True))


def test_named_columns_are_no_features_and_stay_with_their_rows(tmp_path: Path) -> None:
    frame = table()
    frame.to_csv(tmp_path / "all.csv", index=False)
    for name, part in frame.groupby("site"):
        (tmp_path / "sites").mkdir(exist_ok=True)
        part.drop(columns="site").to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    found = read(frame)
    assert found.columns == ("x", "z")
    assert found["a"].group.tolist()[:4] == ["000", "000", "000", "001"]
    first = (pd.to_datetime(frame["visit"]) - pd.Timestamp("1970-01-01")).dt.days
    np.testing.assert_array_equal(found["b"].time, first[1::2])
    whole = read_federation(tmp_path / "all.csv", target="y", agent="site", **ROLES)
    apart = read_federation(tmp_path / "sites", target="y", **ROLES)
    arrays = Federation.from_arrays(
        frame[["x", "z"]], frame["y"], frame["site"], group=frame["patient"], time=frame["visit"], weight=frame["counts"]
    )
    assert whole.digest() == found.digest() == apart.digest() == arrays.digest()
    assert whole["a"].group.tolist() == found["a"].group.tolist()


def test_an_archive_takes_them_from_its_named_features(tmp_path: Path) -> None:
    X = np.column_stack([np.arange(6.0), [1, 1, 2, 2, 3, 3], np.ones(6)])
    np.savez(tmp_path / "a.npz", X=X, y=np.arange(6.0), agent=np.zeros(6, dtype=int), feature_names=["x", "who", "w"])
    found = read_federation(tmp_path / "a.npz", group_by="who", sample_weight="w")
    assert found.columns == ("x",)
    assert found[0].group.tolist() == ["1", "1", "2", "2", "3", "3"]
    assert found[0].weight.tolist() == [1.0] * 6
    assert found[0].time is None


def test_whatever_is_made_of_rows_takes_them_along() -> None:
    federation = read(table())
    everything = {agent.name: held(agent) for agent in federation}
    train, test = federation.split(0.25, 3)
    for name in federation.names:
        assert held(train[name]) | held(test[name]) == everything[name]
        assert held(federation.in_order()[name]) == everything[name]
    prepared = Preparation.fit(federation).transform(federation)
    np.testing.assert_array_equal(prepared["a"].weight, federation["a"].weight)
    agents = PooledAgents(prepared, "regression").without(kinfed.backends.agents.Fold(0, 0, 4))
    view = agents.site(0)
    assert held(view.agent) | held(view.aside) == held(prepared[0])
    assert federation.select([1])[0].group is not None
    assert "weight" in federation.rows([np.arange(2)] * 2)[0].beside


def test_rows_that_differ_in_them_alone_are_different_rows() -> None:
    frame = table()
    frame[["x", "z", "y"]] = 1.0
    one, other = read(frame), read(frame.sample(frac=1.0, random_state=1).sort_values("site", kind="stable"))
    assert one.digest() == other.digest()
    for ours, theirs in zip(one.split(0.3), other.split(0.3), strict=True):
        for name in ("a", "b"):
            assert held(ours[name]) == held(theirs[name])
            assert held(ours.in_order()[name]) == held(theirs.in_order()[name])
    heavier = replace(one, agents=tuple(replace(agent, weight=agent.weight * 2) for agent in one))
    assert heavier.digest() != one.digest()


@pytest.mark.parametrize(
    "change, told",
    [
        ({"counts": 0.0}, "agent a, row 0: the sample weight is 0; give a number above zero or drop the row"),
        ({"counts": np.nan}, "agent a, row 0 has no sample weight; fill it in or drop the row"),
        ({"counts": "heavy"}, "the sample weights are not numbers"),
        ({"visit": "yesterday"}, "agent a, row 0: the time 'yesterday' is neither a number nor a date"),
        ({"visit": None}, "agent a, row 0 has no time; fill it in or drop the row"),
        ({"patient": None}, "agent a, row 0 has no group label; fill it in or drop the row"),
    ],
)
def test_a_mistake_is_named_with_its_row(change: dict[str, object], told: str) -> None:
    frame = table().astype({"counts": object})
    for column, value in change.items():
        frame.loc[0, column] = value
    frame["counts"] = frame["counts"].infer_objects()
    with pytest.raises(kinfed.InputError, match=told):
        read(frame)


def test_a_column_has_one_role() -> None:
    with pytest.raises(kinfed.InputError, match="column 'y' cannot be both the target and the weight"):
        Federation.from_table(table(), "y", "site", sample_weight="y")
    with pytest.raises(kinfed.InputError, match=r"there is no column 'patiént'; the nearest is 'patient'"):
        Federation.from_table(table(), "y", "site", group_by="patiént")
    with pytest.raises(kinfed.InputError, match=r"agent a: weight has shape \(3,\), not \(2,\)"):
        Federation((Agent("a", np.ones((2, 1)), weight=np.ones(3)),), ("x",))


@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y"])
def test_times_may_be_dates_as_people_write_them(form: str) -> None:
    days = pd.date_range("2023-01-20", periods=20, freq="9D")
    frame = pd.DataFrame({"site": ["a", "b"] * 10, "x": np.arange(20.0), "when": days.strftime(form)})
    found = Federation.from_table(frame, agent="site", time="when")
    for agent in found:
        assert agent.time is not None
        assert (np.diff(agent.time) > 0).all()
