"""`python -m mdops` is the command `mdops`. `torchrun -m mdops` starts it in several processes."""

import sys

from mdops.cli import main

sys.exit(main())
