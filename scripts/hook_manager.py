#!/usr/bin/env python3
"""Hooks, as commands and as the functions that agents' prompts import."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.cli.hooks import main

if __name__ == "__main__":
    sys.exit(main())  # a command needs none of what follows

from garrison.cli.original_calls import (
    VALID_PHASES, build_wisdom_prompt_block, create_hook, mark_merged, read_hook, update_phase, update_resumption,
    update_resumption_instructions,
)
