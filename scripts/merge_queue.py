#!/usr/bin/env python3
"""`garrison merge-queue`, and the functions that agents' prompts import."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.cli.main import main
from garrison.cli import merge_queue_process
from garrison.cli.original_calls import as_original

enqueue = as_original(merge_queue_process.enqueue)
process_next = as_original(merge_queue_process.process_next)

if __name__ == "__main__":
    sys.exit(main(["merge-queue", *sys.argv[1:]]))
