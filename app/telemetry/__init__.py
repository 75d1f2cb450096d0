"""Traces and metrics over OTLP: not imported until an endpoint is set. docs/observability.md has the names."""
