"""Sandboxes of an agent's own: tools, a shell and files over a workspace that is filled for them."""
