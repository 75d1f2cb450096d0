"""A person's terminal: what is typed at it, what is drawn on it, and how it is given back."""
