"""Builds, watches, limits and removes the sandboxes of commands."""
