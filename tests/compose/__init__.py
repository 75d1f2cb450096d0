"""The compose file as people run it: built, brought up, each container killed in turn. `make compose-test`."""
