"""The proxy: the only way from a sandbox to listed hosts. A process of its own, which the supervisor starts."""
