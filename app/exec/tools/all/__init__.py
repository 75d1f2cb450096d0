"""Every tool: a module that is added here is found by `tools.registry`."""
