"""`python -m garrison`, for a machine whose PATH lacks the folder of `garrison`."""

import sys

from garrison.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
