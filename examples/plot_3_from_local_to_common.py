"""
From learning together to learning alone
========================================

Twenty-four regressions in two opposite groups. Within a group the coefficients are equal at dispersion 0 and unrelated
at 1. What do a fixed rule and the calibrated rule do in between?
"""

import matplotlib.pyplot as plt
import numpy as np

import kinfed

spreads = (0.0, 0.3, 1.0)
rules = ("local", "grand-mean", "q-aggregation", "calibrated")
own = {rule: [] for rule in rules}
errors = {rule: [] for rule in rules}

for spread in spreads:
    generated = kinfed.concept_shift(n_agents=24, n=25, dim=15, spread=spread, seed=3)
    test = generated.test(500)
    for rule in rules:
        result = kinfed.personalize(generated.train, rule=rule, test=test)
        own[rule].append(result.weights.self_weight.mean())
        errors[rule].append(result.scores["personalized"].mean())

# %%
# The paper's rule goes on listening to others where there is nothing left to learn from them; the calibrated rule goes
# from groups to nearly alone. One federation per dispersion is an illustration: the numbers over 20 repetitions are in
# :doc:`/results/never-wrong/summary`.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
styles = {"local": "C0--", "grand-mean": "C1--", "q-aggregation": "C2o-", "calibrated": "C3s-"}
for rule in rules:
    left.plot(spreads, own[rule], styles[rule], label=rule)
    right.plot(spreads, errors[rule], styles[rule], label=rule)
left.set(xlabel="dispersion within groups", title="Mean weight of an agent's own data", ylim=(0, 1.05))
right.set(xlabel="dispersion within groups", title="Mean squared error on test points", yscale="log")
right.legend()

# %%
# Numbers behind the right figure, a row per dispersion:
np.round(np.column_stack([spreads, *errors.values()]), 2)
