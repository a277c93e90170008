"""What tests of kinds share lies beside the tests of nets and of trainings."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("nn", "train")]
