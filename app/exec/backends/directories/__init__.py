"""Directories of conversations: each is made once, and removed with its conversation unless it has work."""
