"""Weights and error along the steps of Algorithm 3."""

import matplotlib.pyplot as plt
import numpy as np

import kinfed

rng = np.random.default_rng(0)
B, n, D = 20, 20, 40
true = np.zeros((B, D))
true[B // 2 :, 0] = 0.7  # half of the agents are strangers to the first half
points = [mean + rng.standard_normal((n, D)) / np.sqrt(D) for mean in true]

steps = np.unique(np.geomspace(1, 30000, 24).astype(int))
own, kin, strangers, error = [], [], [], []
for count in steps:
    weights = kinfed.q_aggregation(points, steps=int(count), targets=0).matrix[0]
    own.append(weights[0])
    kin.append(weights[1 : B // 2].sum())
    strangers.append(weights[B // 2 :].sum())
    error.append(np.sum((weights @ np.array([array.mean(axis=0) for array in points]) - true[0]) ** 2))

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
left.semilogx(steps, own, color="#0072B2", label="the target itself")
left.semilogx(steps, kin, color="#009E73", label="its nine kin together")
left.semilogx(steps, strangers, color="#D55E00", label="ten strangers together")
left.set(title="Weight", xlabel="steps")
left.legend(fontsize=8)
alone = np.sum((points[0].mean(axis=0) - true[0]) ** 2)
right.semilogx(steps, np.array(error) / alone, color="black")
right.axhline(1, color="#0072B2", linestyle="--", linewidth=1, label="alone")
right.set(title="Squared error of the mean, against alone", xlabel="steps", ylim=(0, None))
right.legend(fontsize=8)
for panel in (left, right):
    panel.axvline(1000, color="grey", linestyle=":", linewidth=1)
