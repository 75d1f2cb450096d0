"""Whether a command may run: classified, matched with rules, bound, decided."""
