"""What the examples share: a Cu-Al crystal with the model that DeePMD-kit trained for it."""

from pathlib import Path

from ase import Atoms
from ase.build import bulk

MODEL = Path(__file__).parents[1] / "tests" / "data" / "formats" / "model.dp"


def alloy(repeat: int = 2) -> Atoms:
    """Fcc copper with a quarter of aluminium, in the order of Cu3Au."""
    atoms = bulk("Cu", a=4.04, cubic=True)
    atoms.symbols[0] = "Al"
    return atoms * (repeat, repeat, repeat)
