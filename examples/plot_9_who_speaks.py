"""
Who speaks in whose model
=========================

Priors around the others' models need no weights: every agent fits its own rows, and begins from what the others' models
make likely. How much another agent speaks in its model is then measured: the share of the model's fitted values that
follows that agent's outcomes.
"""

import kinfed

generated = kinfed.concept_shift(n_agents=24, n=15, dim=4, spread=0.1, seed=1)
result = kinfed.personalize(generated.train, method="stacked", test=generated.test(500))

# %%
# The agents are of two kinds whose outcomes depend on the inputs in opposite ways. Hardly anybody of the other kind speaks
# in an agent's model. Influence is made of squares, so an agent's own rows, which its model follows most, stand out.
result.plot.influence()

# %%
# What was believed before an agent's own rows were seen, and how much each belief shares in the models. The shares are
# those that predicted rows held out best.
result.plot.members()

# %%
# What it is worth.
print(result.compare("local"))
