"""Calibration: a family of weights, scored by every agent on its own points, and one choice for the federation.

Reading order: `family` (what is chosen from), `folds` and `scores` (how it is judged), `choice` (what is taken), `record`
(what people are told).
"""
