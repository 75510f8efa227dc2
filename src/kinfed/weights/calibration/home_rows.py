r"""The weights of the family's bases where a target holds rows out, from what is known of everybody by *all* their rows.

A *case* is a target and the rows it has left. Its own part of every comparison is made of these; the others' part, of
their sketches and quadratics (`kinfed.learners.quadratics`). None of it contains the rows held out: what is fitted on many
agents at once, clusters, is fitted on those outside the target's group, and the target finds its place among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import squareform

from kinfed.backends.agents import Places, TrainingSpec, voiced
from kinfed.embedding import squared_distances
from kinfed.federation import Agent
from kinfed.learners.inputs import relative_weights
from kinfed.learners.quadratics import HomeLearner, Quadratics
from kinfed.splitting import derived_seed
from kinfed.validation import Array, FloatArray
from kinfed.weights.calibration.bases import SCORED_GAP, geometric_bases, used_views
from kinfed.weights.calibration.family import CAUTION, BaseRule
from kinfed.weights.geometry import held_out_geometry
from kinfed.weights.gradient_problem import Answers, point_gradients, spread_of, true_directions
from kinfed.weights.gradient_rows import Caution, products, weigh_answers
from kinfed.weights.rules.closed_form import tree_labels, ward_tree
from kinfed.weights.rules.gradient import PULL, ROUNDS, listening_distances, without_own

GROUPS, GROUPS_OF_ONE = 10, 24
"""Into how many groups agents are dealt; up to so many agents, each is a group of its own."""


@dataclass(frozen=True, eq=False)
class Everybody:
    """What is known of P agents by all their rows.

    Attributes
    ----------
    names : tuple of str
    sizes : array of int of shape (P,)
    means, mean_variance : mapping from a view to arrays of shape (P, D) and (P,)
        Of the views that are used.
    norm_bounds : mapping from a view to float
    quadratics : Quadratics
    spec : TrainingSpec
        With columns and classes.
    learner : HomeLearner
    """

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    means: Mapping[int, Array]
    mean_variance: Mapping[int, Array]
    norm_bounds: Mapping[int, float]
    quadratics: Quadratics
    spec: TrainingSpec
    learner: HomeLearner

    def heard(self, rows: Array, targets: Places | None = None) -> Array:
        """Rows of weights (T, P) with others' times their voices; see `TrainingSpec.heard`."""
        return voiced(rows, self.spec.screening.voices_of(self.names), targets)


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters that were found among the agents outside a group.

    Attributes
    ----------
    labels : array of int of shape (P,)
        The cluster of every agent, from 0; -1 for agents that are in none.
    members : array of shape (C,)
        How many agents outside the group each cluster has.
    centres : array of shape (C, P)
        Of clusters of means, the share of each of those agents; of clusters of weight rows, the mean square root of them.
    within : array of shape (C,)
        Of clusters of means, the mean squared distance of their agents to their centre.
    """

    labels: Places
    members: Array
    centres: Array
    within: Array

    def nearest(self, rise: Array) -> Places:
        """Which cluster to join by Ward's criterion, from squared distances (T, C) to the centres."""
        return np.asarray(np.argmin(rise * self.members / (self.members + 1), axis=1))

    def nearest_to_means(self, distances: Array) -> Places:
        """The cluster of each of some means, from their squared distances (T, P) to all agents."""
        return self.nearest(distances @ self.centres.T - self.within)

    def nearest_to_rows(self, rows: Array) -> Places:
        """The cluster of each of some weight rows (T, P); of them counts whom they listen to outside the group."""
        outside = self.labels >= 0
        roots = np.sqrt(np.maximum(rows[:, outside], 0.0))
        roots /= np.maximum(np.linalg.norm(roots, axis=1, keepdims=True), 1e-300)
        return self.nearest(np.square(roots[:, None] - self.centres[:, outside]).sum(axis=2))

    def together(self, nearest: Places, sizes: Array, targets: Places) -> Array:
        """Rows (T, P) of targets in these clusters: the grand mean within each, of agents as large as `sizes` (T, P)."""
        kin = self.labels == nearest[:, None]
        kin[np.arange(len(targets)), targets] = True
        rows = kin * sizes
        return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def agent_groups(count: int, seed: int) -> Places:
    """The group of each of that many agents."""
    if count <= GROUPS_OF_ONE:
        return np.arange(count)
    rng = np.random.default_rng(derived_seed(seed, "groups of agents"))
    return np.asarray(rng.permutation(np.arange(count) % GROUPS))


def clusters_outside(
    everybody: Everybody, inside: NDArray[np.bool_], bases: Iterable[BaseRule]
) -> dict[BaseRule, Clusters]:
    """The clusters of every base that seeks them, among the agents that are not `inside` a group."""
    wanted = [base for base in bases if base.rule in ("clusters", "gradient-clusters")]
    outside, found = np.flatnonzero(~inside), {}
    trees: dict[int | None, Array] = {}
    listening, apart = np.zeros((0, 0)), np.zeros((0, 0))
    for base in sorted(wanted, key=lambda one: -1 if one.view is None else one.view):  # what counts share is made once
        if base.view not in trees and base.view is None:
            listening = _listening(everybody, outside)
            trees[None] = ward_tree(listening_distances(listening))
        elif base.view not in trees and base.view is not None:
            apart = _distances(everybody.means[base.view])
            trees[base.view] = ward_tree(squareform(np.sqrt(apart[np.ix_(outside, outside)]), checks=False))
        labels = np.full(len(inside), -1, dtype=np.int64)
        labels[outside] = _from_zero(tree_labels(trees[base.view], int(base.strength or 0)))
        members = np.bincount(labels[outside]).astype(np.float64)
        shares = (labels == np.arange(len(members))[:, None]) / members[:, None]
        if base.view is None:
            centres = np.zeros(shares.shape)
            centres[:, outside] = shares[:, outside] @ np.sqrt(listening)
            found[base] = Clusters(labels, members, centres, np.zeros(len(members)))
        else:
            within = np.einsum("ck,kl,cl->c", shares, apart, shares) / 2
            found[base] = Clusters(labels, members, shares, within)
            labels[inside] = found[base].nearest_to_means(apart[inside])
    return {base: found[base] for base in wanted}


@dataclass(frozen=True, eq=False)
class Cases:
    """Targets and the rows they have left.

    Attributes
    ----------
    targets : array of shape (T,)
    parts : tuple of Agent
    embedded : mapping from a view to the embedded points of each part
    clusters : sequence of mappings from a base to Clusters
        For each case, what was found outside its target's group.
    """

    targets: Places
    parts: Sequence[Agent]
    embedded: Mapping[int, Sequence[FloatArray]]
    clusters: Sequence[Mapping[BaseRule, Clusters]]


def home_rows(everybody: Everybody, cases: Cases, bases: Iterable[BaseRule]) -> dict[BaseRule, Array]:
    """Weights (T, P) of every case by every base."""
    wanted, targets = tuple(dict.fromkeys(bases)), cases.targets
    sizes = np.tile(everybody.sizes.astype(np.float64), (len(targets), 1))
    sizes[np.arange(len(targets)), targets] = [len(part) for part in cases.parts]
    geometries = {
        view: held_out_geometry(
            everybody.names,
            everybody.means[view],
            everybody.mean_variance[view],
            everybody.sizes,
            cases.embedded[view],
            targets,
            everybody.norm_bounds[view],
        )
        for view in used_views(wanted)
    }
    clustered = {base: base.view for base in wanted if base.rule == "clusters" and base.view is not None}
    found = geometric_bases([base for base in wanted if base not in clustered], geometries, targets, sizes)
    for base, view in clustered.items():
        found[base] = _joined(cases, base, geometries[view].squared_distances, sizes)
    return found | _gradient_rows(everybody, cases, [base for base in wanted if base.learns], sizes)


def _joined(cases: Cases, base: BaseRule, known: Array, sizes: Array) -> Array:
    """Rows of cases that join the nearest of the clusters found without their target's group.

    `known` (T, P) has their squared distances to all agents, or the rows by the gradient rule.
    """
    rows = np.empty_like(sizes)
    for group in {id(one): one for one in cases.clusters}.values():
        some = np.array([one is group for one in cases.clusters])
        one = group[base]
        nearest = one.nearest_to_rows(known[some]) if base.learns else one.nearest_to_means(known[some])
        rows[some] = one.together(nearest, sizes[some], cases.targets[some])
    return rows


def _gradient_rows(everybody: Everybody, cases: Cases, bases: Sequence[BaseRule], sizes: Array) -> dict[BaseRule, Array]:
    """Bases that compare loss gradients: the usual C_Q goes through all rounds, the others one round on from there."""
    if not bases:
        return {}
    usual = _rounds(everybody, cases, CAUTION, ROUNDS, None)
    matrices = {CAUTION: usual}
    for c_q in sorted({float(base.strength or 0) for base in bases if base.rule == "gradient"} - {CAUTION}):
        matrices[c_q] = _rounds(everybody, cases, c_q, 1, usual)
    found = {base: matrices[float(base.strength or 0)] for base in bases if base.rule == "gradient"}
    return found | {base: _joined(cases, base, usual, sizes) for base in bases if base.rule == "gradient-clusters"}


def _rounds(everybody: Everybody, cases: Cases, c_q: float, rounds: int, start: Array | None) -> Array:
    """The rounds of the gradient rule for cases; see `kinfed.weights.rules.gradient.gradient_rounds`."""
    known, sizes, task = everybody.quadratics, everybody.sizes, everybody.spec.task
    shares = sizes / sizes.sum()
    matrix = np.tile(shares, (len(cases.targets), 1)) if start is None else start
    for _ in range(rounds):
        rows = everybody.heard(without_own(matrix, cases.targets, shares))
        models: Any = everybody.learner.fit_quadratics(known, rows, everybody.spec)
        answers = []
        for case, (t, part) in enumerate(zip(cases.targets.tolist(), cases.parts, strict=True)):
            means, variances = _known_gradients(known, models, case)
            weights = relative_weights(part, everybody.spec)
            own = products(point_gradients(models, case, part.X, np.asarray(part.y), task, weights))
            spread = spread_of(own)
            means[t], variances[t] = own.mean(axis=0), np.square(spread).sum() / len(own)
            answers.append(Answers(means, variances, true_directions(means, variances, shares), spread, len(own)))
        matrix = weigh_answers(answers, cases.targets, sizes, Caution(c_q, PULL, SCORED_GAP)).weights
    return matrix


def _listening(everybody: Everybody, places: Places) -> Array:
    """Whom some agents listen to among themselves by the gradient rule (P, P), from their quadratics alone."""
    if len(places) == 1:
        return np.ones((1, 1))
    known, sizes = everybody.quadratics.select(places), everybody.sizes[places]
    targets, shares = np.arange(len(places)), sizes / sizes.sum()
    values, vectors = np.linalg.eigh(known.curvature)
    roots = np.sqrt(np.maximum(values, 0.0))[:, :, None] * vectors.swapaxes(1, 2)
    matrix = np.tile(shares, (len(places), 1))
    voices = everybody.spec.screening.voices_of([everybody.names[k] for k in places])
    for _ in range(ROUNDS):
        rows = voiced(without_own(matrix, targets, shares), voices)
        models: Any = everybody.learner.fit_quadratics(known, rows, everybody.spec)
        answers = []
        for t in targets.tolist():
            means, variances = _known_gradients(known, models, t)
            spread = np.sqrt(known.spread(_coefficients(models, t))[t]) * roots[t]
            directions = true_directions(means, variances, shares)
            answers.append(Answers(means, variances, directions, spread, int(sizes[t])))
        matrix = weigh_answers(answers, targets, sizes, Caution(CAUTION, PULL, SCORED_GAP)).weights
    return matrix


def _known_gradients(known: Quadratics, models: Any, row: int) -> tuple[Array, Array]:
    """Everybody's mean gradient at a model, and its expected squared error."""
    theta = _coefficients(models, row)
    return known.mean_gradients(theta), known.mean_variance(theta)


def _coefficients(models: Any, row: int) -> Array:
    return np.asarray(models.coefficients[row]).ravel()


def _distances(means: Array) -> Array:
    centred = means - means.mean(axis=0)
    return squared_distances(centred @ centred.T)


def _from_zero(labels: Places) -> Places:
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
