#!/usr/bin/env python3
"""Door: starts the runner of one node by hand."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  # `python3 -I` leaves it out
import _door  # noqa: F401  # runs this again with the checkout's Python if need be
from garrison.cli.main import run_command
from garrison.cli.spawn import spawn_runner

if __name__ == "__main__":
    sys.exit(run_command(spawn_runner))
