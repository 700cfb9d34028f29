#!/usr/bin/env python3
"""Door: `garrison launch PIPELINE --target-dir REPO`, or `--resume RUN`."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  # `python3 -I` leaves it out
import _door  # noqa: F401  # runs this again with the checkout's Python if need be
from garrison.cli.launch import launch
from garrison.cli.main import run_command

if __name__ == "__main__":
    sys.exit(run_command(launch))
