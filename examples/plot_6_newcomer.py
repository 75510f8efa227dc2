"""
A site that comes later
=======================

A federation has been trained. A new site with a few rows asks: who is like me, and what model do I get? Nobody else's
model changes. Here with the rule ``clusters``: other rules need more rows of the newcomer before they see who it is.
"""

import matplotlib.pyplot as plt
import numpy as np

import kinfed

generated = kinfed.concept_shift(n_agents=24, n=20, dim=4, spread=0.02, seed=1)
test = generated.test(400)

# %%
# The last agent stays out and joins later, with 4, 8, 12 or all 20 of its rows.
first = generated.train.select(range(23))
result = kinfed.personalize(first, rule="clusters")
late, unseen = generated.train[23], test[23]
same_group = np.array(generated.train.groups[:23]) == generated.train.groups[23]

sizes = (4, 8, 12, 20)
errors, alone, kin = [], [], []
for n in sizes:
    newcomer = result.onboard(late.X[:n], late.y[:n], name=f"newcomer with {n} rows")
    errors.append(np.mean((newcomer.predict(unseen.X) - unseen.y) ** 2))
    own = kinfed.personalize(kinfed.Federation.from_arrays(late.X[:n], late.y[:n], ["late"] * n), rule="local")
    alone.append(np.mean((own.predict("late", unseen.X) - unseen.y) ** 2))
    kin.append(newcomer.weights.matrix[0, :23][same_group].sum() / max(newcomer.weights.matrix[0, :23].sum(), 1e-12))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
left.plot(sizes, alone, "C0o--", label="alone")
left.plot(sizes, errors, "C2s-", label="with its kin")
left.set(xlabel="rows of the newcomer", title="Mean squared error on 400 unseen rows", yscale="log")
left.legend()
right.plot(sizes, kin, "C2s-")
right.set(xlabel="rows of the newcomer", title="Share of the weight on others that its own group gets", ylim=(0, 1.05))
