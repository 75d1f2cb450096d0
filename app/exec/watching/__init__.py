"""Watches on sessions: when they fire, and who looks."""
