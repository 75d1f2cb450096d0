"""Classifies command lines from their text; starts nothing. A command that is not understood asks."""
