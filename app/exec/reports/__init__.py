"""What the agent is told of sessions: results, callbacks, output events."""
