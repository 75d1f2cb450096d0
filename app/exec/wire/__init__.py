"""What worker and supervisor share: protocol, state directory, log format, Linux calls. Standard library only."""
