"""What data says of frames and atoms beside where these are: one table, which readers, losses and reports go by."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Label:
    """A quantity that a model is trained on.

    Attributes:
        name: as `Potential` calls its answer.
        shape: of one frame's, or of one atom's.
        of_atom: whether each atom has one.
        noun: what people call it.
        unit: of its errors; what grows with the system is compared per atom.
        factor, shown_unit: for reports, in numbers that are easy to read.
        files: DeePMD-kit's names of its files, the usual one first.
        ase: its name in files that ASE reads.
        short: in the columns of a learning curve and the prefactors of a loss.
    """

    name: str
    shape: tuple[int, ...]
    of_atom: bool
    noun: str
    unit: str
    factor: float
    shown_unit: str
    files: tuple[str, ...]
    ase: str
    short: str

    @property
    def per_atom(self) -> bool:
        """Whether its errors are divided by the number of atoms of the frame."""
        return not self.of_atom

    @property
    def component(self) -> str:
        """What one number of it is called."""
        return f"{self.noun} component" if self.of_atom and self.shape else self.noun


_ALL = (
    Label("energy", (), False, "energy", "eV/atom", 1000, "meV/atom", ("energy",), "energy", "e"),
    Label("forces", (3,), True, "force", "eV/A", 1, "eV/A", ("force",), "forces", "f"),
    Label("virial", (3, 3), False, "virial", "eV/atom", 1000, "meV/atom", ("virial",), "virial", "v"),
    Label(
        "atom_energy",
        (),
        True,
        "atomic energy",
        "eV",
        1000,
        "meV",
        ("atom_ener", "atomic_ener"),
        "energies",
        "ae",
    ),
)
LABELS: dict[str, Label] = {label.name: label for label in _ALL}
FRAME_LABELS = {name: label.shape for name, label in LABELS.items() if not label.of_atom}
ATOM_LABELS = {name: label.shape for name, label in LABELS.items() if label.of_atom}
PARAMETERS = ("fparam", "aparam")  # inputs of a model: of a frame, and of each atom


def is_of_frame(name: str) -> bool:
    """Whether a label, or a parameter, is one of a frame."""
    return name in FRAME_LABELS or name == "fparam"
