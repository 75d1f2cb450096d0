"""One turn: claimed, begun, run, heard, closed."""
