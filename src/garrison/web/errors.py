"""A mistake of the server's own, as its terminal is told of it.

The rule of this room: one line, like that of a layer; where it is in garrison stands in it, the whole way there is
printed with GARRISON_DEBUG=1.
"""

from __future__ import annotations

import os
import sys
import traceback

from garrison.processes.main import describe_fault
from garrison.system.terminal_text import clean


def told_mistake(error: Exception) -> None:
    """Say on stderr what went wrong."""
    if os.environ.get("GARRISON_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    else:
        print(clean(f"garrison serve: {describe_fault(error)}"), file=sys.stderr, flush=True)
