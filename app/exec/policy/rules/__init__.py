"""What an operator or a person said beforehand about commands, and what nobody may say yes to."""
