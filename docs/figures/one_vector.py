"""Two sites, four of the random cosines they share, and the vectors of their means."""

import matplotlib.pyplot as plt
import numpy as np

import kinfed

rng = np.random.default_rng(2)
sites = {"first site": rng.normal(0, 1, (80, 1)), "second site": rng.normal(1.5, 1.2, (60, 1))}
features = kinfed.FourierFeatures(kinfed.Gaussian(1.0), n_features=12, dim=1, seed=5)

figure, (rows, cosines, vector) = plt.subplots(1, 3, figsize=(10.5, 3.2), layout="constrained")
place, grid = np.arange(12), np.linspace(-4, 5, 300)[:, None]
for number, (name, points) in enumerate(sites.items()):
    colour = ("#0072B2", "#D55E00")[number]
    rows.hist(points[:, 0], bins=np.linspace(-4, 5, 25), color=colour, alpha=0.6, label=name)
    vector.bar(place + 0.4 * number - 0.2, kinfed.sketch(points, features).mean, 0.4, color=colour)
cosines.plot(grid, features(grid)[:, :4], linewidth=1)
rows.set(title="1. Rows, which stay", xlabel="value")
rows.legend(fontsize=8)
cosines.set(title="2. Cosines all sites draw from one seed", xlabel="value")
vector.set(title="3. Their means: what is shared", xlabel="number of the cosine", xticks=place[::2])
