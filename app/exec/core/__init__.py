"""Nouns, errors, limits, ports: what every package above speaks of."""
