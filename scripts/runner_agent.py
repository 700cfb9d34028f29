#!/usr/bin/env python3
"""Door: a runner's process; its spawner holds the lease it is started for."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  # `python3 -I` leaves it out
import _door  # noqa: F401  # runs this again with the checkout's Python if need be
from garrison.processes.main import main

if __name__ == "__main__":
    sys.exit(main(["runner", *sys.argv[1:]]))
