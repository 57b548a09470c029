"""`python -m detsweep`."""

import sys

from detsweep.app import main

if __name__ == "__main__":
    sys.exit(main())
