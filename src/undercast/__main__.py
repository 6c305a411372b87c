"""`python -m undercast` is the command `undercast`; torchrun starts it this way."""

import sys

from undercast.cli import main

if __name__ == "__main__":
    sys.exit(main())
