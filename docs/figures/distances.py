"""Distances between twelve agents in three groups, and the same as a map."""

import matplotlib.pyplot as plt
import numpy as np

import kinfed
from kinfed.analysis.kinship import agent_map

rng = np.random.default_rng(0)
group = np.repeat([0, 1, 2], 4)
centre = np.array([[0, 0], [1.5, 0], [0.5, 1.5]])
points = [rng.normal(centre[g], 1, (60, 2)) for g in group]
squared = kinfed.pairwise_mmd2(points, kinfed.Gaussian(1.5))

figure, (matrix, plane) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
image = matrix.imshow(np.sqrt(np.maximum(squared, 0)), cmap="magma_r")
figure.colorbar(image, ax=matrix, label="MMD")
matrix.set(title="MMD between agents", xlabel="agent", ylabel="agent")
x, y = agent_map(squared).coordinates.T
for g, (colour, marker) in enumerate((("#0072B2", "o"), ("#E69F00", "s"), ("#009E73", "^"))):
    plane.scatter(x[group == g], y[group == g], color=colour, marker=marker, s=45)
for k in range(12):
    plane.annotate(str(k), (x[k], y[k]), (5, 3), textcoords="offset points", fontsize=8)
plane.set(title="The same distances as a map", aspect="equal")
plane.margins(0.15)
