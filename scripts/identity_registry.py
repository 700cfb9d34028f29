#!/usr/bin/env python3
"""Door: identities, on the command line and under the names the seeds call."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120  # `python3 -I` leaves it out
import _door  # noqa: F401  # runs this again with the checkout's Python if need be
from garrison.cli.identities import (  # noqa: F401
    create_identity,
    find_stale,
    list_all,
    main,
    mark_crashed,
    mark_terminated,
    update_liveness,
)

if __name__ == "__main__":
    sys.exit(main())
