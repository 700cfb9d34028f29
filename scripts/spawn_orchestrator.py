#!/usr/bin/env python3
"""Start the orchestrator of one node by hand."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.cli.commands import run_command
from garrison.cli.spawn import spawn_orchestrator

if __name__ == "__main__":
    sys.exit(run_command(spawn_orchestrator))
