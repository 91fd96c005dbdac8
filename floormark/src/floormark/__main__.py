"""``python -m floormark``: the same as the command ``floormark``."""

import sys

from floormark.cli import main

if __name__ == "__main__":
    sys.exit(main())
