"""What calibration tried for one federation, with the scores its agents gave."""

import matplotlib.pyplot as plt

import kinfed

train = kinfed.concept_shift(n_agents=24, n=25, dim=15, spread=0.1, seed=0).train
calibration = kinfed.collaboration_weights(train).calibration

figure, axes = plt.subplots(figsize=(8.5, 4.6), layout="constrained")
calibration.plot.scores(axes=axes)
