#!/usr/bin/env python3
"""Door: signals, on the command line and under the names the seeds call."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  # `python3 -I` leaves it out
import _door  # noqa: F401  # runs this again with the checkout's Python if need be
from garrison.cli.signals import main, read_signal, wait_for_signal, write_signal  # noqa: F401

if __name__ == "__main__":
    sys.exit(main())
