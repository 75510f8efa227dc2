"""
How many numbers must a site send?
==================================

A sketch of D numbers gives the squared MMD of two sites up to an error that falls like the square root of D. Orthogonal
draws reach the same error with fewer numbers when the dimension is moderate, and Sobol points when it is small.
"""

import matplotlib.pyplot as plt
import numpy as np

import kinfed

rng = np.random.default_rng(0)
counts = (10, 30, 100, 300, 1000)
samplings = ("iid", "orthogonal", "sobol")
repetitions = 15

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
for panel, dim in zip(axes, (3, 10), strict=True):
    first, second = rng.standard_normal((300, dim)), rng.standard_normal((300, dim)) + 0.5
    kernel = kinfed.Gaussian(kinfed.median_bandwidth(np.concatenate([first, second])))
    truth = kinfed.mmd2(first, second, kernel, unbiased=False)
    for sampling in samplings:
        error = []
        for count in counts:
            maps = (
                kinfed.FourierFeatures(kernel, n_features=count, dim=dim, seed=seed, sampling=sampling)
                for seed in range(repetitions)
            )
            found = [np.sum((features(first).mean(axis=0) - features(second).mean(axis=0)) ** 2) for features in maps]
            error.append(np.sqrt(np.mean((np.array(found) / truth - 1) ** 2)))
        panel.loglog(counts, error, "o-", label=sampling)
    panel.loglog(counts, error[0] * np.sqrt(counts[0] / np.array(counts)), "k:", label="one over the square root of D")
    panel.set(title=f"{dim} columns", xlabel="D, numbers a site sends")
axes[0].set_ylabel("relative error of the squared MMD")
axes[0].legend()

# %%
# What the error costs a *model* is another question: with the paper's rule, 100 numbers are within 2 % of the exact kernel
# (:doc:`/results/feature-count/summary`).
