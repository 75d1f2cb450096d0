"""Rules of operators and people, and the default denials."""
