"""A worker whose application version is the first argument: what another release looks like to queues and hosts."""

import sys

import shellback.work.worker.worker
from shellback.cli.main import main

shellback.work.worker.worker.application_version = lambda: sys.argv[1]
main(["worker", *sys.argv[2:]])
