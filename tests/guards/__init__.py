"""Guards taken away one at a time: `python -m tests.guards` proves that a test notices each."""
