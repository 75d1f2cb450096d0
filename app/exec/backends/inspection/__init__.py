"""Inspection: checks what commands of profile `work` made in the workspace, before a person's git reads it."""
