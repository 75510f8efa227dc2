"""The problem of one target with two other agents, over all weights: without and with the penalty."""

import matplotlib.pyplot as plt
import numpy as np

import kinfed
from kinfed.weights.objective import q_aggregation_problem

rng = np.random.default_rng(4)
means = np.zeros((3, 20))
means[1, 0], means[2, 0] = 0.05, 0.9  # a kin of the target, and a stranger
points = [mean + rng.standard_normal((25, 20)) / np.sqrt(20) for mean in means]
geometry = kinfed.explicit_geometry(points, targets=0)

side = np.linspace(0, 1, 90)
kin, stranger = np.meshgrid(side, side)
inside = kin + stranger <= 1 + 1e-9
figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.5), layout="constrained")
titles = ("unbiased risk alone", "with a tenth of the penalty", "with the paper's penalty")
for panel, share, title in zip(panels, (0.0, 0.1, 1.0), titles, strict=True):
    constant = share * np.log(3)
    problem = q_aggregation_problem(geometry, np.sqrt(constant), constant)
    values = np.full(kin.shape, np.nan)
    for place in np.argwhere(inside):
        a, b = kin[tuple(place)], stranger[tuple(place)]
        values[tuple(place)] = problem.value(np.array([[1 - a - b, a, b]]))[0]
    panel.contourf(kin, stranger, values, 14, cmap="magma_r")
    best = np.unravel_index(np.nanargmin(values), values.shape)
    panel.plot(kin[best], stranger[best], "*", color="#0072B2", markersize=13, markeredgecolor="white", clip_on=False)
    panel.set(title=title, xlabel="weight of the kin", aspect="equal")
    panel.text(0.97, 0.93, "corner at the lower left:\nthe target alone", ha="right", va="top", fontsize=7.5)
panels[0].set_ylabel("weight of the stranger")
