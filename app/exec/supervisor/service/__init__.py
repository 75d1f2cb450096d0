"""The supervisor as a program: keeper, requests, starts, recovery."""
