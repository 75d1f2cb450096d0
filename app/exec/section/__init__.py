"""Sections: a sandbox for one agent, with tools, a shell and files over a workspace of its own."""
