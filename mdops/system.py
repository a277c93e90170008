"""The atoms given to a model, from tensors or ASE, checked before an op sees them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from ase import Atoms
from ase.data import chemical_symbols

from mdops.errors import InputError

__all__ = [
    "AtomsByType",
    "System",
    "atom_spins",
    "atom_types",
    "element_types",
    "from_atoms",
    "from_tensors",
    "require_finite",
]

# The charges (e) and multiplicities (2 S + 1) for which models have embeddings.
CHARGES, MULTIPLICITIES = range(-100, 100), range(100)


class AtomsByType:
    """For each type the indices (int64) of its atoms. They are valid for one tensor of types (N,), until it is changed.
    Changes in place of a tensor of `torch.inference_mode` are not noticed."""

    def __init__(self, types: torch.Tensor, atoms: Sequence[torch.Tensor]) -> None:
        self._types, self._version, self._atoms = types, _version(types), tuple(atoms)

    def atoms(self, types: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
        """The indices, or None if these are other types, or have changed."""
        return self._atoms if types is self._types and _version(types) == self._version else None


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


class Exchange(Protocol):
    """Returns rows of nodes (N + M, W): N atoms, then M ghosts with the rows of their owners. Ghosts are atoms of other
    processes or images. Its input has the rows of the atoms; rows after them are ignored.

    Attributes:
        atoms: N.
    """

    @property
    def atoms(self) -> int: ...

    def __call__(self, nodes: torch.Tensor) -> torch.Tensor: ...


class Noise(NamedTuple):
    """What moved atoms of a training.

    Attributes:
        moved: (N,) bool, the atoms.
        displacements: (N, 3) float64, A; 0 for others.
        forces: (N, 3) float64, eV/A, those before.
    """

    moved: torch.Tensor
    displacements: torch.Tensor
    forces: torch.Tensor


@dataclass
class System:
    """N atoms of S systems (docs/reference/ops.md, Conventions).

    Attributes:
        positions: (N, 3) float64, A.
        types: (N,) int32.
        cell: (S, 3, 3) float64, A.
        pbc: (S, 3) bool.
        batch: (N,) int32.
        atoms_by_type: which atoms are of which type, if known; forgotten when `types` are set or changed.
        first_types: (S,) int32, the type of each system's first atom in the user's order, if the atoms here are in
            another order. DeePMD-kit's absent neighbours have that type in descriptors of mixed types.
        exchange: for systems with ghosts, which come after the atoms of the system itself.
        charge_spin: (S, 2) float64, each system's charge, e, and multiplicity, for models with embeddings of these.
            None: the models' default.
        paired: whether a virtual atom follows each atom (mdops/models/spin.py).
        spins: (N, 3) float64, magnetic moments, for models that take them as vectors.
        noise: what moved atoms, for models that are trained to find it.
    """

    positions: torch.Tensor
    types: torch.Tensor
    cell: torch.Tensor
    pbc: torch.Tensor
    batch: torch.Tensor
    atoms_by_type: AtomsByType | None = None
    first_types: torch.Tensor | None = None
    exchange: Exchange | None = None
    paired: bool = False
    charge_spin: torch.Tensor | None = None
    spins: torch.Tensor | None = None
    noise: Noise | None = None

    def atoms_of_types(self, ntypes: int) -> tuple[torch.Tensor, ...]:
        """For each type, the indices (int64) of its atoms."""
        known = self.known_atoms_by_type()
        if known is None:
            return tuple(torch.nonzero(self.types == kind)[:, 0] for kind in range(ntypes))
        return known

    def known_atoms_by_type(self) -> tuple[torch.Tensor, ...] | None:
        """The same if it is known, or None."""
        return None if self.atoms_by_type is None else self.atoms_by_type.atoms(self.types)

    def find_atoms_by_type(self, ntypes: int) -> None:
        """Computes `atoms_of_types` for later use."""
        self.atoms_by_type = AtomsByType(self.types, self.atoms_of_types(ntypes))

    def first_of_systems(self) -> torch.Tensor:
        """(S,) integers: `first_types`, or the types of the first atoms here if these are not set."""
        if self.first_types is not None:
            return self.first_types
        if self.atoms == 0:
            return self.types.new_zeros(self.count)
        if self.count == 1:
            return self.types[:1]
        atoms = torch.arange(self.atoms, device=self.batch.device)
        places = torch.full((self.count,), self.atoms - 1, device=self.batch.device)
        return self.types[places.scatter_reduce(0, self.batch.long(), atoms, "amin")]

    @property
    def types_without_ghosts(self) -> torch.Tensor:
        """(N,) int32, -1 for ghosts, which have no energies."""
        if self.exchange is None:
            return self.types
        own, ghosts = self.types.split([self.exchange.atoms, self.atoms - self.exchange.atoms])
        return torch.cat((own, torch.full_like(ghosts, -1)))

    @property
    def atoms(self) -> int:
        return self.positions.shape[0]

    @property
    def count(self) -> int:
        """S."""
        return self.cell.shape[0]


def hidden_atoms(aparam: torch.Tensor) -> torch.Tensor:
    """(N,) bool: the atoms that a mask (N, 1) leaves out. Raises InputError if it is not a mask."""
    mask = aparam.detach().reshape(len(aparam), -1)
    wrong = (mask != 0) & (mask != 1)
    if mask.shape[1] != 1 or bool(wrong.any()):
        found = f"{mask.shape[1]} numbers an atom" if mask.shape[1] != 1 else f"{float(mask[wrong][0]):g}"
        raise InputError(f"aparam has {found}, expected 1 for each atom that is there, and 0 for others")
    return mask[:, 0] == 0


def from_tensors(
    positions: torch.Tensor,
    types: torch.Tensor,
    cell: torch.Tensor | None,
    pbc: torch.Tensor | None,
    batch: torch.Tensor | None,
    ntypes: int,
) -> System:
    """A System of tensors on one device.

    Without `batch` there is one system, and `cell` and `pbc` may lack their first axis. Without `cell`
    nothing is periodic; with a cell and no `pbc` everything is.

    Raises:
        InputError: a shape, dtype, device or value that does not fit; the message names the argument.
    """
    _check_tensor("positions", positions, (None, 3), floating=True)
    atoms, device = positions.shape[0], positions.device
    _check_tensor("types", types, (atoms,), floating=False, device=device)
    if batch is None:
        batch = torch.zeros(atoms, dtype=torch.int32, device=device)
        systems: int | None = 1
        cell = cell[None] if cell is not None and cell.dim() == 2 else cell
        pbc = pbc[None] if pbc is not None and pbc.dim() == 1 else pbc
    else:
        _check_tensor("batch", batch, (atoms,), floating=False, device=device)
        systems = None if cell is not None else int(batch.max()) + 1 if atoms else 1
    if cell is None:
        assert systems is not None
        cell = torch.zeros(systems, 3, 3, dtype=torch.float64, device=device)
        pbc = torch.zeros(systems, 3, dtype=torch.bool, device=device) if pbc is None else pbc
    _check_tensor("cell", cell, (systems, 3, 3), floating=True, device=device)
    if pbc is None:
        pbc = torch.ones(cell.shape[0], 3, dtype=torch.bool, device=device)
    _check_tensor("pbc", pbc, (cell.shape[0], 3), dtype=torch.bool, device=device)
    system = System(positions.double(), types.int(), cell.double(), pbc, batch.int())
    _check_values(system, ntypes)
    return system


def from_atoms(
    frames: Sequence[Atoms],
    type_map: Sequence[str],
    device: torch.device | str = "cpu",
    *,
    defaults: Sequence[Sequence[float] | None] = (),
) -> System:
    """A System of ASE Atoms, one system each. ASE's "X" is a virtual atom, unless the model has a type X. `defaults`:
    see `charges_and_spins`.

    Raises:
        InputError: an element that is not in `type_map`, or a value that is not finite; and as `charges_and_spins`.
    """
    if not frames:
        raise InputError("there are no systems: an empty list was given")
    for atoms in frames:
        if not isinstance(atoms, Atoms):
            raise InputError(f"`atoms` is, or holds, a {type(atoms).__name__}, expected ase.Atoms")

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype, device=device)

    system = System(
        tensor(
            np.concatenate([as_real("positions", a.positions).reshape(-1, 3) for a in frames]), torch.float64
        ),
        tensor(atom_types(frames, type_map), torch.int32),
        tensor(np.array([as_real("cell", atoms.cell.array) for atoms in frames]), torch.float64),
        tensor(np.array([atoms.pbc for atoms in frames]), torch.bool),
        tensor(np.repeat(np.arange(len(frames)), [len(atoms) for atoms in frames]), torch.int32),
    )
    charge_spin = charges_and_spins(frames, defaults)
    system.charge_spin = None if charge_spin is None else tensor(charge_spin, torch.float64)
    _check_values(system, len(type_map))
    return system


# Names of charges (0) and multiplicities (1) in `info` that other programs use.
_OTHER_NAMES = {"charge": 0, "total_charge": 0, "spin": 1, "total_spin": 1, "multiplicity": 1}


def other_charges(info: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The charges and multiplicities in `info` under names of other programs; empty if `info` has a charge_spin."""
    if info.get("charge_spin") is not None:
        return ()
    return tuple((name, info[name]) for name in _OTHER_NAMES if info.get(name) is not None)


def require_defaults(given: Sequence[tuple[str, Any]], defaults: Sequence[Sequence[float] | None]) -> None:
    """Raises InputError if `given`, from `other_charges`, differ from the defaults of the model's parts."""
    for name, value in given:
        for default in defaults:
            expected = np.nan if default is None else float(default[_OTHER_NAMES[name]])
            if not np.array_equal(value, expected):
                by = "none" if default is None else f"{expected:g}"
                raise InputError(
                    "the model uses `info['charge_spin'] = [charge, multiplicity]`, but `info` has only "
                    f"{name!r} = {value}, and the model's default is {by}: give charge_spin, or remove "
                    f"{name!r}"
                )


def charges_and_spins(
    frames: Sequence[Atoms], defaults: Sequence[Sequence[float] | None] = ()
) -> np.ndarray | None:
    """(S, 2) float64: `atoms.info["charge_spin"]` of each frame, its charge and multiplicity; None if no frame has one.

    `defaults`: the defaults of the model's parts. Raises InputError if only some frames have one, if a charge or a
    multiplicity under a name of another program differs from the default, and as `checked_charge_spin`."""
    given = [atoms.info.get("charge_spin") for atoms in frames]
    lacking = [number for number, one in enumerate(given) if one is None]
    if len(lacking) == len(given):
        for atoms in frames if defaults else ():
            require_defaults(other_charges(atoms.info), defaults)
        return None
    if lacking:
        raise InputError(f"system {lacking[0]} has no `charge_spin` in its `info`, and others have one")
    return np.concatenate([checked_charge_spin(one, 1) for one in given])


def checked_charge_spin(value: Any, systems: int) -> np.ndarray:
    """(S, 2) float64, from an array of that shape or from (2,), for all systems.

    Raises InputError unless there are a charge (-100 to 99) and a multiplicity (0 to 99) for each system."""
    expected = "expected a charge, -100 to 99, and a multiplicity, 0 to 99"
    try:
        array = as_real("charge_spin", value)
    except InputError:
        array = np.zeros(0)
    if array.shape not in ((2,), (systems, 2)):
        raise InputError(f"charge_spin is {value!r}, {expected}, of each of {systems} systems")
    array = np.broadcast_to(array, (systems, 2)).copy()
    for pair in np.unique(array, axis=0):
        if not all(number in known for number, known in zip(pair, (CHARGES, MULTIPLICITIES), strict=True)):
            raise InputError(f"charge_spin is {pair.tolist()}, {expected}, which are whole numbers")
    return array


def atom_spins(frames: Sequence[Atoms]) -> np.ndarray:
    """(N, 3) float64: the initial magnetic moments of all frames, one after the other; a number is one along z.

    Raises InputError if a frame has none."""
    found = []
    for atoms in frames:
        if not atoms.has("initial_magmoms"):
            raise InputError(
                "the model has magnetic moments, but the atoms have none: give them by "
                "`atoms.set_initial_magnetic_moments`, a vector or a number (along z) for each atom"
            )
        moments = as_real("initial magnetic moments", atoms.arrays["initial_magmoms"])
        along_z = np.array([0.0, 0.0, 1.0])
        found.append(moments[:, None] * along_z if moments.ndim == 1 else moments)
    spins = np.concatenate(found)
    require_finite("initial magnetic moments", spins)
    return spins


def atom_types(frames: Sequence[Atoms], type_map: Sequence[str]) -> np.ndarray:
    """(N,) int64: `number_types` of the atoms of all frames, one after the other."""
    return number_types(np.concatenate([atoms.numbers for atoms in frames]), type_map)


def number_types(numbers: np.ndarray, type_map: Sequence[str]) -> np.ndarray:
    """(N,) int64: `element_types` of atomic numbers. Raises InputError for invalid atomic numbers, too."""
    # Each element is looked up once, because there may be a thousand frames.
    elements, place = np.unique(numbers, return_inverse=True)
    for number in elements.tolist():
        if number not in range(len(chemical_symbols)):
            raise InputError(
                f"an atom has the atomic number {number}, expected 0 to {len(chemical_symbols) - 1}"
            )
    return element_types([chemical_symbols[number] for number in elements], type_map)[place]


def element_types(symbols: Sequence[str], type_map: Sequence[str], owner: str = "the model") -> np.ndarray:
    """(n,) int64: the index of each symbol in `type_map`; -1 for "X" unless it is there. Errors name `owner`."""
    index = {"X": -1} | {symbol: t for t, symbol in enumerate(type_map)}
    unknown = sorted(set(symbols) - set(index))
    if unknown:
        others = [name for name in type_map if name not in chemical_symbols]
        hint = (
            f". `mdops convert --rename {others[0]}={unknown[0]} IN OUT` renames its types" if others else ""
        )
        raise InputError(
            f"{owner} does not know {', '.join(unknown)}; its elements are {', '.join(type_map)}{hint}"
        )
    return np.array([index[symbol] for symbol in symbols], dtype=np.int64)


_LARGEST = 1e30


def require_finite(name: str, values: np.ndarray | torch.Tensor | None) -> None:
    """Raises InputError, with the first wrong number, if numbers are NaN, infinite, or so large that float32 could
    overflow in a model."""
    if values is None:
        return
    numbers = torch.as_tensor(values).detach()
    wrong = torch.nonzero(~(numbers.abs() <= _LARGEST))
    if len(wrong):
        place = wrong[0].tolist()
        raise InputError(
            f"{name}{place if place else ''} is {float(numbers[tuple(place)])}, expected finite numbers up to 1e30"
        )


def as_real(name: str, value: Any) -> np.ndarray:
    """float64. Raises InputError unless these are real numbers; NumPy would drop imaginary parts."""
    try:
        given = np.asarray(value)
        found = given.astype(np.float64, copy=False) if given.dtype.kind != "c" else None
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is {value!r}, expected numbers") from error
    if found is None:
        raise InputError(f"{name}: given are complex numbers ({given.dtype}), expected real ones")
    return found


def as_numbers(name: str, value: Any) -> np.ndarray:
    """A copy in float64, with at least one dimension. Raises InputError as `as_real`, and for numbers not finite."""
    found = np.array(as_real(name, value), ndmin=1)
    require_finite(name, found)
    return found


def _check_tensor(
    name: str,
    value: Any,
    shape: tuple[int | None, ...],
    *,
    floating: bool | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> None:
    if not isinstance(value, torch.Tensor):
        raise InputError(f"`{name}` is a {type(value).__name__}, expected a tensor")
    fits = value.dim() == len(shape) and all(b in (None, a) for a, b in zip(value.shape, shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise InputError(f"`{name}` has shape {tuple(value.shape)}, expected ({wanted})")
    whole = not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
    kind_fits = floating is None or (value.is_floating_point() if floating else whole)
    if not kind_fits or (dtype is not None and value.dtype != dtype):
        wanted = str(dtype) if dtype is not None else "a floating dtype" if floating else "an integer dtype"
        raise InputError(f"`{name}` has dtype {value.dtype}, expected {wanted}")
    if device is not None and value.device != device:
        raise InputError(f"`{name}` is on {value.device}, expected {device}, where `positions` are")


def _check_values(system: System, ntypes: int) -> None:
    """Checks that positions and cells are finite and indices are in range, for tensors that have values."""
    if system.positions.is_meta:
        raise InputError("the atoms are on the device meta, whose tensors have no values")
    if system.atoms:
        finite = torch.isfinite(system.positions.detach()).all(1)
        if not bool(finite.all()):
            atom = int(torch.nonzero(~finite)[0])
            raise InputError(f"atom {atom} has position {system.positions[atom].tolist()}, not finite")
        for name, index, low, high in (
            ("types", system.types, -1, ntypes),
            ("batch", system.batch, 0, system.count),
        ):
            wrong = (index < low) | (index >= high)
            if bool(wrong.any()):
                atom = int(torch.nonzero(wrong)[0])
                raise InputError(f"atom {atom}: `{name}` is {int(index[atom])}, expected {low} .. {high - 1}")
    periodic = system.cell.detach()[system.pbc]
    if not bool(torch.isfinite(periodic).all()):
        raise InputError(f"`cell` is not finite: {system.cell.tolist()}")


def voigt(stress: np.ndarray) -> np.ndarray:
    """(..., 6), the symmetric part in ASE's order xx, yy, zz, yz, xz, xy, of (..., 3, 3)."""
    symmetric = (stress + stress.swapaxes(-1, -2)) / 2
    return symmetric[..., [0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
