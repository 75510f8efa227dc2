"""
A scikit-learn estimator
========================

:class:`kinfed.PersonalizedRegressor` is told which agent a row belongs to, and is otherwise an estimator like any
other: it can be cloned, cross-validated and put around another estimator.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.tree import DecisionTreeRegressor

import kinfed

generated = kinfed.concept_shift(n_agents=18, n=40, dim=4, spread=0.05, seed=0)
X = np.concatenate([agent.X for agent in generated.train])
y = np.concatenate([agent.y for agent in generated.train])
agent = np.repeat(generated.train.names, generated.train.sizes)

# %%
# Four models under the same five folds.
tree = DecisionTreeRegressor(max_depth=5, min_samples_leaf=5, random_state=0)
models = {
    "one ridge for all": Ridge(),
    "one tree for all": tree,
    "personal ridge": kinfed.PersonalizedRegressor(rule="similarity-test"),
    "personal trees": kinfed.PersonalizedRegressor(tree, rule="similarity-test"),
}
scores = {name: [] for name in models}
for train, test in KFold(5, shuffle=True, random_state=0).split(X):
    for name, model in models.items():
        told = {"agent": agent[train]} if isinstance(model, kinfed.PersonalizedRegressor) else {}
        asked = {"agent": agent[test]} if told else {}
        predicted = model.fit(X[train], y[train], **told).predict(X[test], **asked)
        scores[name].append(np.mean((predicted - y[test]) ** 2))

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.boxplot(list(scores.values()), orientation="horizontal", tick_labels=list(scores))
axes.set(xlabel="mean squared error, five folds", title="18 sites, two kinds of them")

# %%
{name: round(float(np.mean(values)), 3) for name, values in scores.items()}
