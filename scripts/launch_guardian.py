#!/usr/bin/env python3
"""`garrison launch`."""
import os, sys
sys.path.append(os.path.dirname(os.path.realpath(__file__)))  # `python3 -I` leaves it out
import _script
from garrison.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["launch", *sys.argv[1:]]))
