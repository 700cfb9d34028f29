#!/usr/bin/env python3
"""`garrison merge-queue`, and the functions that agents' prompts import."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.cli.main import main
from garrison.cli.merge_queue_process import enqueue, process_next

if __name__ == "__main__":
    sys.exit(main(["merge-queue", *sys.argv[1:]]))
