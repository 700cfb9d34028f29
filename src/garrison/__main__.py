"""`python -m garrison`, for machines where `garrison` is not on the PATH."""

import sys

from garrison.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
