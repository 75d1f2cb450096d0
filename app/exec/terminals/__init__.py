"""Terminals of sessions: keys that go in, the screen that a person would see, and lending a person's own."""
