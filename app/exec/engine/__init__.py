"""A command is started once and ended once: starts, waits, ends, the registry of sessions."""
