"""Calibration: a family of weights, scored by every agent on its own points, and one choice for the federation.

Reading order: `family` (what is chosen from, and what people are told), `bases` (its weights), `scores` and
`successive_halving` (how it is judged), `choice` (what is taken), `calibrated` (the rule).
"""
