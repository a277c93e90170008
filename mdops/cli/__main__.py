"""`python -m mdops.cli` is `mdops`."""

import sys

from mdops.cli import main

sys.exit(main())
