"""A town: a network namespace in which each address of the world is, with servers, its own resolver and a watch.

What comes there, and was not to, is seen by the signs in it. Nothing leaves the town: its only device is a loopback.
"""
