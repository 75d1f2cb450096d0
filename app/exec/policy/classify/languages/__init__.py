"""The small languages that everyday programs take as an argument, each as far as it can only turn text into text."""
