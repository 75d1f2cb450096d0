"""Kills at every named point, counted from outside: `python -m chaos`."""
