"""Instances shared by the tests: federations of embedded points with a known shape."""

import numpy as np
import pytest
from hypothesis import settings

settings.register_profile("kinfed", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("kinfed")


def embedded_agents(kind, n_agents, dim, n, seed=0):
    """Points (n, dim) of every agent, with tr Sigma about 1 and means arranged by `kind`."""
    rng = np.random.default_rng(seed)
    means = np.zeros((n_agents, dim))
    if kind == "clustered":
        means = (0.3 * rng.standard_normal((3, dim)) / np.sqrt(dim))[rng.integers(0, 3, n_agents)]
    elif kind in ("random", "duplicated", "rank-deficient"):
        means = 0.3 * rng.standard_normal((n_agents, dim)) / np.sqrt(dim)
    points = means[:, None] + rng.standard_normal((n_agents, n, dim)) / np.sqrt(dim)
    if kind == "duplicated":
        points[n_agents // 2 :] = points[: n_agents - n_agents // 2]
    elif kind == "rank-deficient":
        points[:, :, max(2, dim // 10) :] = 0.0
    elif kind == "zero-variance":
        points[::2] = points[::2, :1]
    elif kind == "all-zero-variance":
        points[:] = points[:, :1]
    elif kind == "all-equal":
        points[:] = points[0, 0]
    return list(points)


KINDS = (
    "same",
    "random",
    "clustered",
    "duplicated",
    "rank-deficient",
    "zero-variance",
    "all-zero-variance",
    "all-equal",
)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="session")
def sites(tmp_path_factory):
    """A folder with the tables of three sites, whole and site by site."""
    from flower_federation import write_tables

    return write_tables(tmp_path_factory.mktemp("sites"))


@pytest.fixture(scope="session")
def deployment(tmp_path_factory, sites):
    """One SuperLink with TLS and node keys, without a route where that is possible, and a SuperNode for every site.

    All tests that need one share it, so they belong to one group: ``pytest.mark.xdist_group("deployment")``. A test that
    has killed a node leaves it so; one that needs all of them calls `revive_nodes` first.
    """
    from flower_deployment import Deployment, Network
    from flower_federation import NAMES

    with Network() as network, Deployment(tmp_path_factory.mktemp("deployment"), network, nodes=len(NAMES)) as made:
        for number, name in enumerate(NAMES):
            made.start_node(number, f'name="{name}" data="{sites / name}.csv" out="{sites / "kept" / name}"')
        made.wait_for_nodes()
        yield made
