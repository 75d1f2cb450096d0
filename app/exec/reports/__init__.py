"""Reports on sessions for the agent: results, callbacks, output events."""
