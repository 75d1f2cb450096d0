"""Workers elsewhere: turns on one machine, their workspaces and processes on another, and the calls between them."""
