"""Pages for the people who operate Shellback: what waits for them, conversations, processes."""
