"""One target's line: alone, one for all, and on the weighted risk."""

import matplotlib.pyplot as plt
import numpy as np

import kinfed

rng = np.random.default_rng(7)
slopes = np.array([1.0] * 6 + [-1.0] * 6)
X = rng.normal(0, 1, (12, 8))
Y = slopes[:, None] * X + 0.9 * rng.standard_normal(X.shape)
federation = kinfed.Federation.from_arrays(X.reshape(-1, 1), Y.ravel(), np.repeat(np.arange(12), 8))
weight = kinfed.collaboration_weights(federation, rule="entropic").matrix[0]

figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
for k in range(12):
    colour = "#0072B2" if k == 0 else "#009E73" if slopes[k] > 0 else "#999999"
    axes.scatter(X[k], Y[k], s=5 + 250 * weight[k], color=colour, alpha=0.6, linewidths=0)
grid = np.linspace(-2.5, 2.5, 50)[:, None]
lines = {"local": ("alone", "#0072B2", "--"), "grand-mean": ("one common model", "#E69F00", "--")}
lines["entropic"] = ("personal: on the weighted risk", "#009E73", "-")
for rule, (words, colour, style) in lines.items():
    axes.plot(grid, kinfed.personalize(federation, rule=rule).predict("0", grid), style, color=colour, label=words)
axes.plot(grid, grid, color="black", linewidth=0.8, linestyle=":", label="truth")
axes.set(xlabel="x", ylabel="y", title="Points of all agents, as large as their weight for the target (blue)")
axes.legend(fontsize=8)
