"""Calibration: a family of weights, scored by every agent on its own points, and one choice for the federation.

Reading order: `family` (what is chosen from, and what people are told), `bases` (its weights), `losses`, `home_rows`
and `cross_fitting` (how targets judge it by themselves), `scores` and `successive_halving` (how it is judged where they
cannot), `choice` (what is taken), `calibrated` (the rule).
"""
