"""
What calibration tried, and why it chose
========================================

The rule ``calibrated`` makes a family of weights, lets every agent score each of them on points of its own, and keeps
the table.
"""

import kinfed

generated = kinfed.concept_shift(n_agents=20, n=15, dim=5, spread=0.1, seed=0)
weights = kinfed.collaboration_weights(generated.train)
for sentence in weights.calibration.describe():
    print(sentence)

# %%
# The best candidates, with their scores on points that the models have not seen. Local and the grand mean are always among
# them.
weights.calibration.table.head(8)

# %%
weights.calibration.plot.scores()

# %%
# What this means for a single agent.
weights.explanation.head(5)
