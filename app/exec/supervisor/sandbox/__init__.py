"""The sandbox of a command: built, watched, limited, torn down."""
