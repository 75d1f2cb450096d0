"""Shellback whose application version is the first argument: what another release looks like to queues and hosts.

The words of a command follow; without any it is a worker.
"""

import sys

import shellback.work.worker.worker
from shellback.cli.main import main

shellback.work.worker.worker.application_version = lambda: sys.argv[1]
main(sys.argv[2:] or ["worker"])
