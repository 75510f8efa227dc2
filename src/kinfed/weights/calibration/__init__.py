"""Calibration: a family of weights, scored by every agent on its own points, and one choice for the federation.

Reading order: `family` (what is chosen from), `trials` (what is asked of the agents), `folds`, `scores` and `race` (how it
is judged), `choice` (what is taken), `record` (what people are told), `pooled` (all points in one place), `calibrated` (the
rule).
"""
