"""Figures beside their baselines; `python -m benchmarks --help`."""
