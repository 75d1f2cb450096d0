"""Nouns, errors, limits and ports that every package above uses."""
