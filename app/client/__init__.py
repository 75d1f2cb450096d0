"""What a client does on a state directory: messages, events, decisions, processes; for commands, programs and HTTP."""
