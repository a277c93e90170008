"""Magnetic moments as virtual atoms: each atom has one in the direction of its spin (DeepSPIN: Yang et al.,
Phys. Rev. B 110, 064427, 2024; DeePMD-kit's `spin_model.py`). Or as vectors, for some descriptors
(`NativeSpin`).

A system of a model with virtual atoms has two rows for each atom, one after the other: the atom, and its virtual atom,
whose type is the atom's plus the number of elements. Atoms without a spin have a row of type -1 there, which no atom
sees. Results have the same rows.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from mdops.errors import ConfigError, InputError, UnsupportedModelError
from mdops.nn.sums import sum_systems
from mdops.system import System

Answers = dict[str, torch.Tensor]
_SCHEME, _NATIVE = "deepspin", "native"


@dataclasses.dataclass(frozen=True)
class Spin:
    """How spins make virtual atoms.

    Attributes:
        use_spin: for each element, whether its atoms have a spin.
        virtual_scale: for each element, the distance of its virtual atom, A for a spin of one.
        paired: whether there are virtual atoms.
    """

    paired: ClassVar[bool] = True

    use_spin: tuple[bool, ...]
    virtual_scale: tuple[float, ...]

    @classmethod
    def of(cls, tree: Mapping[str, Any], type_map: Sequence[str], place: str = "spin") -> "Spin":
        """That of a section `spin`, whose `use_spin` has a truth value for each type, or names or numbers of some.

        Raises ConfigError for one that does not fit the types, UnsupportedModelError for another scheme."""
        if str(tree.get("scheme", _SCHEME)).lower() != _SCHEME:
            raise UnsupportedModelError(
                f"spins by the scheme {tree['scheme']!r} are not supported; those as virtual atoms are ({_SCHEME!r})"
            )
        known = "use_spin", "virtual_scale", "scheme", "allow_missing_label"
        unknown = {name for name in tree if name not in known and not name.startswith("_")}  # _comment
        if unknown & {"virtual_len", "spin_norm"}:
            raise ConfigError(
                f"{place}: instead of virtual_len and spin_norm write virtual_scale, their ratio{_ratio(tree)}, and "
                "give systems of real atoms, with spin.npy and force_mag.npy: data of DeePMD-kit's TensorFlow backend "
                "list virtual atoms beside the others"
            )
        if unknown or "use_spin" not in tree or "virtual_scale" not in tree:
            raise ConfigError(
                f"{place}: expected the keys use_spin and virtual_scale, and got {', '.join(tree)}"
            )
        if tree.get("allow_missing_label"):
            raise ConfigError(f"{place}.allow_missing_label: every frame has to have spins")
        use = _truths(tree["use_spin"], type_map, f"{place}.use_spin")
        given, place = tree["virtual_scale"], f"{place}.virtual_scale"
        scales = given if isinstance(given, list) else [given] * len(use)
        if not all(isinstance(scale, int | float) and 0 <= scale < 1e3 for scale in scales):
            raise ConfigError(f"{place}: is {given}, expected numbers that are not negative")
        if len(scales) == sum(use) != len(use):
            rest = iter(scales)
            scales = [next(rest) if has else 0.0 for has in use]
        if len(scales) != len(use):
            raise ConfigError(
                f"{place}: has {len(scales)} numbers, expected one, one a type ({len(use)}) or one a type with a spin "
                f"({sum(use)})"
            )
        return cls(tuple(use), tuple(float(scale) for scale in scales))

    def to_tree(self) -> dict[str, Any]:
        """As DeePMD-kit's files have it."""
        return {"use_spin": list(self.use_spin), "virtual_scale": list(self.virtual_scale)}

    @property
    def ntypes(self) -> int:
        """The number of elements."""
        return len(self.use_spin)

    @property
    def magnetic_types(self) -> tuple[int, ...]:
        """The types of virtual atoms of elements that have a spin."""
        return tuple(self.ntypes + t for t, has in enumerate(self.use_spin) if has)

    @property
    def nearest(self) -> float:
        """The distance of the nearest virtual atom at a spin of one, A."""
        scales = zip(self.use_spin, self.virtual_scale, strict=True)
        return min((scale for has, scale in scales if has and scale > 0), default=float("inf"))

    @property
    def silent(self) -> dict[str, tuple[int, ...]]:
        """The types whose rows have no results of their own, for labels of atoms."""
        virtual = tuple(range(self.ntypes, 2 * self.ntypes))
        others = tuple(t for t in range(2 * self.ntypes) if t not in self.magnetic_types)
        return {"forces": virtual, "force_mag": others, "atom_energy": virtual}

    def _virtual_types(self, types: torch.Tensor) -> torch.Tensor:
        """The types of the virtual atoms; -1, which no atom sees, without a spin."""
        virtual = tuple(self.ntypes + t if has else -1 for t, has in enumerate(self.use_spin))
        return _table((*virtual, -1), types.dtype, types.device)[types.long()]

    def _scale(self, types: torch.Tensor) -> torch.Tensor:
        """(N, 1) float64, A for a spin of one; 0 without a spin."""
        pairs = zip(self.use_spin, self.virtual_scale, strict=True)
        scales = (*(scale if has else 0.0 for has, scale in pairs), *[0.0] * (self.ntypes + 1))
        return _table(scales, torch.float64, types.device)[types.long()][:, None]  # -1: the last row

    def offsets(self, types: torch.Tensor, spins: torch.Tensor) -> torch.Tensor | None:
        """(N, 3) float64, A: from atoms of these types (N,), with these spins (N, 3), to their virtual atoms; None if
        there are none."""
        scale = self._scale(types)
        return spins.to(scale) * scale

    def system(self, system: System, spins: torch.Tensor) -> System:
        """A system of N atoms with these spins (N, 3), as the model takes it: one of 2 N rows.

        Raises InputError for spins of another shape."""
        _require_vectors(spins, system)
        return System(
            places(system.positions, self.offsets(system.types, spins)),
            _pairs(system.types, self._virtual_types(system.types)),
            system.cell,
            system.pbc,
            system.batch.repeat_interleave(2),
            first_types=system.first_types,
            paired=True,
            charge_spin=system.charge_spin,
        )

    def rows_of(self, aparam: torch.Tensor | None) -> torch.Tensor | None:
        """Atomic parameters (N, q) with zeros for virtual atoms, as in DeePMD-kit; (q,) stays."""
        return aparam if aparam is None or aparam.dim() < 2 else _pairs(aparam, torch.zeros_like(aparam))

    def answers(self, found: Mapping[str, torch.Tensor], system: System) -> Answers:
        """Turns results for atoms and virtual atoms into those of atoms with spins: the force is the sum of both, and
        the magnetic force `force_mag` minus the derivative of the energy by the spin, eV a unit of spin. Spins do not
        rotate with the cell: the virial is that of the positions."""
        result = dict(found)
        if "forces" not in found:
            return result
        both, places = found["forces"].view(-1, 2, 3), system.positions.view(-1, 2, 3)
        zero = torch.zeros_like(both[:, 0])
        result["forces"] = _pairs(both.sum(1), zero)
        result["force_mag"] = _pairs(zero, both[:, 1] * self._scale(system.types[::2]))
        turned = both[:, 1, :, None] * (places[:, 1] - places[:, 0]).to(both)[:, None, :]
        if "virial" in found:
            # A component of a system is one sum.
            sums = 9 * system.batch[::2, None] + torch.arange(9, device=turned.device)
            more = sum_systems(turned.to(found["virial"]).flatten(), sums.flatten(), 9 * system.count)
            result["virial"] = found["virial"] - more.view(-1, 3, 3)
        if "atom_virial" in found:
            of_pairs = found["atom_virial"].view(-1, 2, 3, 3).sum(1) - turned
            result["atom_virial"] = _pairs(of_pairs, torch.zeros_like(of_pairs))
        return result

    def of_atoms(self, answers: Mapping[str, torch.Tensor]) -> Answers:
        """The rows of N atoms of such results, (N, ...); those of systems unchanged."""
        of_atoms = "forces", "atom_energy", "atom_virial"
        found = {name: value[::2] if name in of_atoms else value for name, value in answers.items()}
        return found | ({"force_mag": answers["force_mag"][1::2]} if "force_mag" in answers else {})


@dataclasses.dataclass(frozen=True)
class NativeSpin(Spin):
    """Spins as vectors for a descriptor. A system has only its atoms, and the vectors in `System.spins`; results have
    magnetic forces directly."""

    paired: ClassVar[bool] = False

    @classmethod
    def of(cls, tree: Mapping[str, Any], type_map: Sequence[str], place: str = "spin") -> "NativeSpin":
        """As `Spin.of`. `virtual_scale` is kept without effect."""
        given = {name: value for name, value in tree.items() if name != "virtual_scale" or value is not None}
        found = Spin.of({"virtual_scale": 1.0, **given, "scheme": _SCHEME}, type_map, place)
        return cls(found.use_spin, found.virtual_scale)

    def to_tree(self) -> dict[str, Any]:
        return {**super().to_tree(), "scheme": _NATIVE}

    @property
    def nearest(self) -> float:
        return float("inf")

    @property
    def silent(self) -> dict[str, tuple[int, ...]]:
        return {"force_mag": tuple(t for t, has in enumerate(self.use_spin) if not has)}

    def offsets(self, types: torch.Tensor, spins: torch.Tensor) -> None:
        return None

    def system(self, system: System, spins: torch.Tensor) -> System:
        _require_vectors(spins, system)
        return dataclasses.replace(system, spins=spins.to(system.positions))

    def rows_of(self, aparam: torch.Tensor | None) -> torch.Tensor | None:
        return aparam

    def answers(self, found: Mapping[str, torch.Tensor], system: System) -> Answers:
        return dict(found)

    def of_atoms(self, answers: Mapping[str, torch.Tensor]) -> Answers:
        return dict(answers)


def places(positions: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
    """(2 N, 3): the positions of atoms and their virtual atoms in turn; those of the atoms without `offsets`."""
    return positions if offsets is None else _pairs(positions, positions + offsets)


def is_native(section: Any) -> bool:
    """Whether a section `spin` is of spins as vectors for the descriptor."""
    return isinstance(section, Mapping) and str(section.get("scheme", _SCHEME)).lower() == _NATIVE


def native_section(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section of spins as vectors of a file, which need not name the scheme."""
    return {**section, "scheme": _NATIVE}


def spin_of_types(section: Mapping[str, Any], type_map: Sequence[str], place: str = "spin") -> Spin:
    """That of a section `spin` of a model with these types, including those of virtual atoms.

    Raises ConfigError for one that does not fit the types."""
    if is_native(section):
        return NativeSpin.of(section, type_map, place)
    spin = Spin.of(section, type_map[: len(type_map) // 2], place)
    if 2 * spin.ntypes != len(type_map):
        raise ConfigError(f"{place} is of {spin.ntypes} elements, and there are {len(type_map)} types")
    return spin


def spin_of(options: Any, type_map: Sequence[str]) -> Spin | None:
    """That of the options of a model with these types; None for a model without spins."""
    section = getattr(options, "spin", None)
    return None if section is None else spin_of_types(section, type_map)


@functools.cache
def _table(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Kept for good, because a CUDA graph cannot copy from the host, and reads it in each replay."""
    return torch.tensor(values, dtype=dtype, device=device)


def _require_vectors(spins: torch.Tensor, system: System) -> None:
    if spins.shape != system.positions.shape:
        raise InputError(
            f"spins have shape {tuple(spins.shape)}, expected {tuple(system.positions.shape)}: a vector for each atom"
        )


def _pairs(first: Any, second: Any) -> Any:
    """(2 N, ...): the rows of two arrays, or tensors, in turn."""
    if isinstance(first, np.ndarray):
        return np.stack([first, second], 1).reshape(-1, *first.shape[1:])
    return torch.stack([first, second], 1).flatten(0, 1)


def _ratio(tree: Mapping[str, Any]) -> str:
    """virtual_len / spin_norm in brackets, or nothing."""
    lengths, norms = tree.get("virtual_len"), tree.get("spin_norm")
    if not isinstance(lengths, list) or not isinstance(norms, list) or len(lengths) != len(norms):
        return ""
    if not all(isinstance(value, int | float) and value > 0 for value in (*lengths, *norms)):
        return ""
    return f" ([{', '.join(f'{length / norm:.6g}' for length, norm in zip(lengths, norms, strict=True))}])"


def _truths(given: Any, type_map: Sequence[str], place: str) -> list[bool]:
    """`use_spin` for each type."""
    listed = given if isinstance(given, list) else []
    if len(listed) == len(type_map) and all(isinstance(v, bool) for v in listed):
        return listed
    names = [type_map[v] if type(v) is int and 0 <= v < len(type_map) else v for v in listed]
    unknown = [name for name in names if name not in type_map]
    if not isinstance(given, list) or unknown:
        raise ConfigError(
            f"{place}: is {given}, expected true or false for each type, or names of types of {', '.join(type_map)}"
        )
    return [name in names for name in type_map]
