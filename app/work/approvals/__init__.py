"""What people say: messages, decisions, audit, and how an approval is used once."""
