#!/usr/bin/env python3
"""Identities, as commands and as the functions that agents' prompts import."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.cli.identities import main

if __name__ == "__main__":
    sys.exit(main())  # a command needs none of what follows

from garrison.cli.original_calls import (
    create_identity, find_stale, list_all, mark_crashed, mark_terminated, read_identity, update_liveness,
)
