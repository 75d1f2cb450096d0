"""What a command line would do, told from its text alone: nothing is started, and what is not known asks."""
