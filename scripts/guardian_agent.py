#!/usr/bin/env python3
"""Process of a guardian; its parent has taken the lease on its name."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.processes.main import main

if __name__ == "__main__":
    sys.exit(main(["guardian", *sys.argv[1:]]))
