#!/usr/bin/env python3
"""Door: the merge queue, on the command line and under the names the seeds call."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  # `python3 -I` leaves it out
import _door  # noqa: F401  # runs this again with the checkout's Python if need be
from garrison.cli.main import main
from garrison.cli.merge_queue_process import enqueue, process_next  # noqa: F401

if __name__ == "__main__":
    sys.exit(main(["merge-queue", *sys.argv[1:]]))
