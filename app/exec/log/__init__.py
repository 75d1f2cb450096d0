"""The stored output of sessions: where it is, what was dropped of it, how it is read."""
