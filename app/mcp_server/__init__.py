"""The tools over the Model Context Protocol: a client's calls are calls of the very tools that agents have."""
