"""
Predicted against measured gain
===============================

Two forecasts can be had before the models are used. ``predict_gain`` trains nothing: it says what collaborating would
save of the error of each agent's *mean embedding*. Calibration scores *models* on rows they have not seen. How do both
compare with what the models then save on test points?
"""

import matplotlib.pyplot as plt
import numpy as np

import kinfed

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
settings = {"two kinds of agents": 0.0, "unrelated agents": 1.0}
for words, spread in settings.items():
    generated = kinfed.concept_shift(n_agents=30, n=20, dim=5, spread=spread, seed=2)
    test = generated.test(500)

    predicted = kinfed.predict_gain(generated.train, rule="q-aggregation")
    result = kinfed.personalize(generated.train, rule="q-aggregation", test=test)
    measured = 1 - result.scores["personalized"] / result.scores["local"]
    left.plot(predicted.gain, measured, "o", alpha=0.6, label=f"{words}: {predicted.mean_gain:+.0%} predicted")

    result = kinfed.personalize(generated.train, rule="calibrated", test=test)
    measured = 1 - result.scores["personalized"] / result.scores["local"]
    forecast = -result.weights.calibration.choice.versus_local
    right.plot(forecast, measured, "o", alpha=0.6, label=f"{words}: {np.mean(measured):+.0%} measured")

for panel in (left, right):
    panel.axhline(0, color="black", linewidth=0.8)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_ylabel("measured: saved test error of the model")
    panel.legend(fontsize=8)
left.set(title="predict_gain, rule q-aggregation", xlabel="predicted: saved error of the mean embedding")
right.set(title="calibration", xlabel="forecast: saved error on rows set aside")

# %%
# The left forecast is about whole distributions. Unrelated regressions on equal inputs share much of their
# distribution, so the embedding gains from them and the model hardly does. The right forecast is about the models, and
# nearly the same for all agents of a federation: what few rows say about one agent is shrunken towards what all say.
# Where a model is to be trained, believe the right one; the left one is what can be known from sketches alone.
