"""One command: spawned, read, written to, waited for, killed."""
