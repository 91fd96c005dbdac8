"""``python -m samplewise.cli`` is the command ``samplewise``."""

import sys

from samplewise.cli import main

if __name__ == "__main__":
    sys.exit(main())
