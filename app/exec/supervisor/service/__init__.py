"""The supervisor as a program: keeper, daemon, requests, recovery."""
