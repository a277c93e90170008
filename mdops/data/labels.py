"""What data says of frames and atoms beside where these are: one table, which readers, losses and reports go by."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mdops.models.contract import ENERGY, Output
from mdops.models.spin import Spin


@dataclass(frozen=True)
class Label:
    """A quantity that a model is trained on.

    Attributes:
        name: as `Potential` calls its answer.
        shape: of one frame's, or of one atom's; -1 for as many as the data has.
        of_atom: whether each atom has one.
        noun: what people call it.
        unit: of its errors; what grows with the system is compared per atom.
        factor, shown_unit: for reports, in numbers that are easy to read.
        files: DeePMD-kit's names of its files, the usual one first.
        ase: its name in files that ASE reads.
        short: in the columns of a learning curve and the prefactors of a loss.
        extensive: whether that of a frame grows with the system.
        compared: whether errors of it are reported: not of what labels may split among the atoms in any way.
        is_input: whether a model, or a loss, takes it; then nothing is learned from it.
        of_pairs: whether each pair of a frame's atoms has one, (i, j), i first; files have (3 n, 3 n) numbers a frame.
        weighs: the other label whose errors it weighs; it has no errors of its own then.
        projects: whether these are summed up, by its numbers (3, G) of each atom, to G errors of a frame.
        scales: the label of frames that is the sum of its atoms' answers times these numbers; 1 where a frame has none.
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
    extensive: bool = True
    compared: bool = True
    is_input: bool = False
    of_pairs: bool = False
    weighs: str = ""
    projects: bool = False
    scales: str = ""

    def shape_of(self, values: int, atoms: int) -> tuple[int, ...]:
        """Of one frame's, of so many values and atoms."""
        shape = (atoms, *self.shape) if self.of_atom else self.shape
        fixed = max(1, int(np.prod([n for n in shape if n >= 0])))
        return tuple(max(1, values // fixed) if n < 0 else n for n in shape)

    @property
    def answer(self) -> str:
        """Which of a model's answers its errors are of."""
        return self.weighs or self.name

    def arranged(self, values: np.ndarray, frames: int, atoms: int) -> np.ndarray | None:
        """The numbers of a file, or of a frame, as (frames, ...), a row a frame, atom or pair; None if there are not as
        many as there should be."""
        rows = (atoms * atoms,) if self.of_pairs else (atoms,) if self.of_atom else ()
        if values.size != frames * int(np.prod((*rows, *self.shape))):
            return None
        if self.of_pairs:
            values = values.reshape(frames, atoms, 3, atoms, 3).swapaxes(2, 3)
        return values.reshape(frames, *rows, *self.shape)

    @property
    def per_atom(self) -> bool:
        """Whether its errors are divided by the number of atoms of the frame."""
        return self.extensive and not self.of_atom

    @property
    def component(self) -> str:
        """What one number of it is called."""
        return f"{self.noun} component" if self.of_atom and self.shape else self.noun


Labels = Mapping[str, Label]

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
        compared=False,
    ),
    Label(
        *("hessian", (3, 3), False, "Hessian element", "eV/A^2", 1, "eV/A^2", ("hessian",), "hessian", "h"),
        extensive=False,
        of_pairs=True,
    ),
    Label(
        *(
            "atom_pref",
            (),
            True,
            "weighted force component",
            "eV/A",
            1,
            "eV/A",
            ("atom_pref",),
            "atom_pref",
            "pf",
        ),
        weighs="forces",
    ),
    Label(
        *("drdq", (3, -1), True, "generalized force", "eV", 1, "eV", ("drdq",), "drdq", "gf"),
        compared=False,
        weighs="forces",
        projects=True,
    ),
    Label(
        *("atom_ener_coeff", (), True, "coefficient of an atom's energy", "", 1, "", ("atom_ener_coeff",)),
        *("atom_ener_coeff", "ec"),
        compared=False,
        is_input=True,
        scales="energy",
    ),
)
LABELS: Labels = {label.name: label for label in _ALL}  # of models of energies
# Of models of energies with magnetic moments; `spin` is read with the labels, and is an input.
SPIN_LABELS: Labels = {
    **{name: label for name, label in LABELS.items() if not (label.of_pairs or label.weighs or label.scales)},
    "forces": replace(LABELS["forces"], short="fr"),
    "force_mag": Label(
        *("force_mag", (3,), True, "magnetic force", "eV/moment", 1, "eV/moment"),
        ("force_mag",),
        "force_mag",
        "fm",
    ),
    "spin": Label(
        *("spin", (3,), True, "spin", "", 1, "", ("spin",), "initial_magmoms", "spin"),
        compared=False,
        is_input=True,
    ),
}
# Inputs of a model: of a frame, of each atom, and a frame's charge and multiplicity.
PARAMETERS = ("fparam", "aparam", "charge_spin")


def warn_of_moments(source: str, known: Labels) -> None:
    """Of data with magnetic forces for a model of energies that has no magnetic moments."""
    if known is LABELS:
        warnings.warn(
            f"{source} has magnetic forces (force_mag), which a model without the section 'spin' ignores",
            stacklevel=2,
        )


def labels_of(outputs: Sequence[Output], has_spin: bool = False) -> Labels:
    """What models of these outputs can be trained on."""
    if tuple(outputs) == (ENERGY,):
        return SPIN_LABELS if has_spin else LABELS
    if all(output.name in LABELS and LABELS[output.name].shape == output.shape for output in outputs):
        known = [name for output in outputs for name in (output.name, output.atom_name)]
        return {name: label for name, label in LABELS.items() if name in known}
    return {label.name: label for output in outputs for label in _of_output(output)}


def _of_output(output: Output) -> list[Label]:
    """Of a system, where it has the output, and of its atoms, but for what is a mean of theirs."""
    name, noun, unit = output.name, output.name.replace("_", " "), output.unit
    per_atom = f"{unit}/atom" if unit else "per atom"
    found = []
    if output.extensive or output.intensive:
        of = per_atom if output.extensive else unit
        short = f"global_{name}" if output.extensive else name
        found.append(
            Label(name, output.shape, False, noun, of, 1, of, (name,), name, short, output.extensive)
        )
    if not output.intensive:
        atoms, files = f"atom_{name}", (f"atomic_{name}", f"atom_{name}")
        short = f"local_{name}"
        found.append(Label(atoms, output.shape, True, f"atomic {noun}", unit, 1, unit, files, atoms, short))
    return found


def silent_types(label: str, silent: Sequence[int], spin: Spin | None) -> tuple[int, ...]:
    """The types whose atoms have no answer for a label of atoms, of a model with these `silent` types and this spin."""
    if spin is not None and label in spin.silent:
        return spin.silent[label]
    return tuple(silent) if label.startswith("atom_") else ()


def is_of_frame(name: str, known: Labels) -> bool:
    """Whether a label, or a parameter, is one of a frame, or of the pairs of its atoms, and not one of an atom."""
    return name != "aparam" if name in PARAMETERS else not known[name].of_atom
