#!/usr/bin/env python3
"""Signals, as commands and as the functions that agents' prompts import."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.cli.signals import main, read_signal, wait_for_signal, write_signal

if __name__ == "__main__":
    sys.exit(main())
