"""A person's terminal: reading keys, drawing, and restoring its modes."""
