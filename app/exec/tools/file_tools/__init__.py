"""The tools for files: looked at before they act, done to what was looked at, recorded once."""
