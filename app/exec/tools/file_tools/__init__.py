"""The tools for files."""
