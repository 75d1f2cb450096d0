"""What people are told outside of a conversation."""
