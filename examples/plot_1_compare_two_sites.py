"""
Compare two sites by their sketches
===================================

Two hospitals and a third one each make one vector about their patients: the mean of 500 random features. The vectors
are files; the rows stay where they are. From the vectors alone one reads how far the sites are apart, and how much of
that chance explains.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import kinfed

# %%
# All sites agree on a recipe: a kernel, how many features, and a seed. Everyone can redraw the same features from it.
features = kinfed.FourierFeatures(kinfed.Gaussian(1.5), n_features=500, dim=2, seed=0)

rng = np.random.default_rng(1)
patients = {
    "north": rng.normal([0, 0], 1, (200, 2)),
    "south": rng.normal([0, 0], 1, (150, 2)),
    "coast": rng.normal([1.2, 0.5], 1, (180, 2)),
}

# %%
# Every site makes its sketch and saves it. The file is what is sent.
folder = Path(tempfile.mkdtemp())
for name, rows in patients.items():
    kinfed.sketch(rows, features).save(folder / f"{name}.npz")
received = {name: kinfed.load_sketch(folder / f"{name}.npz") for name in patients}
{name: (sketch.n, len(sketch.mean), (folder / f"{name}.npz").stat().st_size) for name, sketch in received.items()}

# %%
# The squared distance between two vectors estimates the squared MMD of the two distributions, plus what chance adds: each
# mean has a variance of tr Sigma / n. Taking that off leaves an unbiased estimate, which the rows themselves confirm.
names = list(received)
pairs = [("north", "south"), ("north", "coast"), ("south", "coast")]


def unbiased(first, second):
    """Squared MMD of two sketches without the part that chance explains."""
    return np.sum((first.mean - second.mean) ** 2) - first.trace / first.n - second.trace / second.n


from_vectors = [unbiased(received[a], received[b]) for a, b in pairs]
from_rows = [kinfed.mmd2(patients[a], patients[b], kinfed.Gaussian(1.5)) for a, b in pairs]

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for name, rows in patients.items():
    left.scatter(*rows.T, s=8, alpha=0.6, label=name)
left.set(title="What the sites have (and keep)", xlabel="first column", ylabel="second column")
left.legend()
place = np.arange(3)
right.bar(place - 0.2, from_vectors, 0.4, label="from the vectors")
right.bar(place + 0.2, from_rows, 0.4, label="from the rows, by the kernel")
right.axhline(0, color="black", linewidth=0.8)
right.set(title="Squared MMD", xticks=place, xticklabels=[f"{a}, {b}" for a, b in pairs])
right.legend()
