"""Kills and errors at every system call of supervisor and keeper, with strace: `python -m chaos.syscalls`."""
