"""Host mounts: parts of the host's files copied into a workspace before anything runs in it, all of them or none."""
