"""What the supervisor writes to disk: exit records, logs, the diary."""
