"""Backends: each turns a spec into a plan of what to spawn. No other package knows where commands run."""
