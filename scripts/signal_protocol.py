#!/usr/bin/env python3
"""Signals, as commands and as the functions that agents' prompts import."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.cli.signals import main

if __name__ == "__main__":
    sys.exit(main())  # a command needs none of what follows

from garrison.cli import original_calls
from garrison.cli.original_calls import (
    list_signals, move_to_processed, read_signal, wait_for_signal, write_agent_crashed, write_agent_registered,
    write_agent_terminated, write_signal,
)

globals().update(original_calls.SIGNAL_TYPES)
