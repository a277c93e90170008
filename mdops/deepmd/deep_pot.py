"""A model with the arguments and results of DeePMD-kit's `deepmd.infer.DeepPot`."""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch

from mdops.errors import InputError
from mdops.flags import require_flags
from mdops.loading import load
from mdops.potential import Overflow, Potential
from mdops.system import System, checked_charge_spin, from_tensors, require_finite

# The default number of atoms in a batch fills the device and needs little memory.
_BATCH_ATOMS = {"cpu": 4096, "cuda": 65536}
_DTYPES = {"fp32": np.float32, "fp64": np.float64}


class _Frames(NamedTuple):
    """F frames of n atoms: coords (F, n, 3), cells (F, 3, 3) or None, types (F, n), fparam (F, p) or None, aparam
    (F, n, q) or None, charge_spin (F, 2) or None, spin (F, n, 3) or None."""

    coords: np.ndarray
    cells: np.ndarray | None
    types: np.ndarray
    fparam: np.ndarray | None
    aparam: np.ndarray | None
    charge_spin: np.ndarray | None
    spin: np.ndarray | None

    def part(self, pick: slice) -> "_Frames":
        cells, *others = (
            None if array is None else array[pick]
            for array in (self.cells, self.fparam, self.aparam, self.charge_spin, self.spin)
        )
        return _Frames(self.coords[pick], cells, self.types[pick], *others)


class DeepPot:
    """`DeepPot("model.dp").eval(coords, cells, atom_types)`, for programs that were written for DeePMD-kit.

    The results are DeePMD-kit's: they are computed in float64, and if there are more neighbours than the model's `sel`,
    the farthest are dropped, unless `overflow` says otherwise. Many frames are computed together.

    Attributes:
        potential: the model.
    """

    def __init__(
        self,
        model_file: str | os.PathLike[str] | Potential,
        *,
        auto_batch_size: bool | int = True,
        head: str | None = None,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str = "float64",
        spline: bool = True,
        overflow: Overflow = "truncate",
    ) -> None:
        """Reads the model.

        Args:
            model_file: a file in a format of docs/reference/formats.md, or a Potential, which is used as it is.
            auto_batch_size: the number of atoms that are evaluated together (True: suits the device; False: all).
            head, device, dtype, spline, overflow: for files, as of `mdops.load`.

        Raises:
            ModelFileError, UnsupportedModelError, InputError: as `mdops.load`.
        """
        require_flags(spline=spline)
        self.potential = (
            model_file
            if isinstance(model_file, Potential)
            else load(model_file, head=head, device=device, dtype=dtype, spline=spline, overflow=overflow)
        )
        self.potential.require_energies("DeepPot", adds_charges=True)
        if not isinstance(auto_batch_size, bool | int) or (
            auto_batch_size < 1 and auto_batch_size is not False
        ):
            raise InputError(
                f"auto_batch_size is {auto_batch_size!r}, expected True, False or a number of atoms"
            )
        self._batch_atoms: int | None = (
            None
            if auto_batch_size is False
            else _BATCH_ATOMS[self.potential.device.type] if auto_batch_size is True else auto_batch_size
        )  # fmt: skip

    def eval(
        self,
        coords: Any,
        cells: Any,
        atom_types: Any,
        atomic: bool = False,
        fparam: Any = None,
        aparam: Any = None,
        mixed_type: bool = False,
        charge_spin: Any = None,
        spin: Any = None,
    ) -> tuple[np.ndarray, ...]:
        """Energies, forces and virials of F frames of n atoms each.

        Args:
            coords: (F, n, 3) or (F, 3 n), A.
            cells: (F, 9) or (F, 3, 3), rows are lattice vectors, A; None: nothing is periodic.
            atom_types: (n,) for all frames, indices in `get_type_map()`; (F, n) with `mixed_type`. -1: no atom.
            atomic: give atomic energies and virials, too.
            fparam: (F, p), or (p,) for all frames.
            aparam: (F, n, q); (n, q) for all frames, or (q,) for all atoms.
            mixed_type: each frame has its own types.
            charge_spin: (F, 2), or (2,) for all frames, the charge, e, and the multiplicity, for models with embeddings
                of these; None: the model's default.
            spin: (F, n, 3) or (F, 3 n), magnetic moments, for models that take them.

        Returns:
            energy (F, 1), eV; force (F, n, 3), eV/A; virial (F, 9), W = -dE/d(strain), eV; with `atomic` also
            atom_energy (F, n, 1) and atom_virial (F, n, 9), a pair's virial booked on the neighbour. With `spin` then
            follow force_mag (F, n, 3), -dE/d(spin), and mask_mag (F, n, 1) bool, which atoms have moments. float64.

        Raises:
            InputError: shapes do not fit, or the model cannot evaluate a frame (`Potential.forward`).
        """
        frames = self._frames(coords, cells, atom_types, fparam, aparam, mixed_type, charge_spin, spin)
        f, n, _ = frames.coords.shape
        shapes = {"energy": (f, 1), "forces": (f, n, 3), "virial": (f, 9)}
        if atomic:
            shapes |= {"atom_energy": (f, n, 1), "atom_virial": (f, n, 9)}
        moments = self.potential.model.spin
        if moments is not None:
            shapes |= {"force_mag": (f, n, 3)}

        def answer(system: System, fparam: Any, aparam: Any) -> dict[str, torch.Tensor]:
            if moments is not None:
                aparam = moments.rows_of(aparam)
            found = self.potential.evaluate(system, None, fparam, aparam, atom_virial=atomic)
            return found if moments is None else moments.of_atoms(found)

        found = self._in_batches(frames, answer)
        arrays = [_joined([part[name] for part in found], shape) for name, shape in shapes.items()]
        if moments is not None:
            arrays.append(np.array([*moments.use_spin, False])[frames.types][..., None])
        return tuple(arrays)

    def eval_descriptor(
        self,
        coords: Any,
        cells: Any,
        atom_types: Any,
        fparam: Any = None,
        aparam: Any = None,
        mixed_type: bool = False,
        dtype: str = "native",
        charge_spin: Any = None,
        spin: Any = None,
    ) -> np.ndarray:
        """The descriptor of each atom, (F, n, D); arguments as of `eval`.

        `dtype` is "fp32", "fp64" or "native", the precision of the computation. `fparam`, `aparam` have no effect.

        Raises:
            InputError: as `eval`. UnsupportedModelError: the model has no descriptor, or several.
        """
        if dtype not in ("native", *_DTYPES):
            raise InputError(f"dtype is {dtype!r}, expected 'fp32', 'fp64' or 'native'")
        frames = self._frames(coords, cells, atom_types, fparam, aparam, mixed_type, charge_spin, spin)

        def answer(system: System, *_: Any) -> dict[str, torch.Tensor]:
            return {"descriptor": self.potential.descriptors(system)[:: 2 if system.paired else 1]}

        found = self._in_batches(frames, answer)
        (f, n), width = frames.types.shape, found[0]["descriptor"].shape[1] if found else 0
        native = np.float32 if self.potential.dtype == torch.float32 else np.float64
        descriptors = _joined([part["descriptor"] for part in found], (f, n, width))
        return descriptors.astype(_DTYPES.get(dtype, native), copy=False)

    # -- Properties of the model, as DeePMD-kit calls them

    def get_type_map(self) -> list[str]:
        """The element of each type, without virtual atoms of moments."""
        return list(self.potential.model.elements)

    def get_ntypes(self) -> int:
        return len(self.get_type_map())

    def get_rcut(self) -> float:
        """The cutoff, A."""
        return self.potential.cutoff

    def get_dim_fparam(self) -> int:
        """The number of frame parameters that the model takes."""
        return self.potential.parameter_sizes["fparam"]

    def get_dim_aparam(self) -> int:
        """The number of atomic parameters that the model takes; a mask counts as one."""
        return 1 if self.potential.model.masks else self.potential.parameter_sizes["aparam"]

    def has_default_fparam(self) -> bool:
        """Whether the model has default frame parameters."""
        return "fparam" in self.potential.model.default_parameters

    def get_sel_type(self) -> list[int]:
        """The types that have an output; empty: all."""
        return []

    def get_ntypes_spin(self) -> int:
        """0, as of DeePMD-kit's PyTorch backend: virtual atoms are not among the atoms."""
        return 0

    @property
    def has_spin(self) -> bool:
        """Whether the model takes magnetic moments."""
        return self.potential.model.spin is not None

    @property
    def use_spin(self) -> list[bool]:
        """For each type, whether its atoms have magnetic moments."""
        moments = self.potential.model.spin
        return [] if moments is None else list(moments.use_spin)

    has_efield = has_hessian = False

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- Implementation

    def _frames(
        self,
        coords: Any,
        cells: Any,
        atom_types: Any,
        fparam: Any,
        aparam: Any,
        mixed_type: bool,
        charge_spin: Any,
        spin: Any,
    ) -> _Frames:
        """The arguments of `eval` in their full shapes."""
        types = np.asarray(atom_types)
        whole = types.dtype.kind in "biu" or (
            types.dtype.kind == "f" and bool((types == np.floor(types)).all())
        )
        if types.size and not whole:
            raise InputError(f"atom_types are {types.dtype}, expected integers")
        if types.ndim not in (1, 2) or (mixed_type and types.ndim != 2):
            expected = "(frames, atoms) with mixed_type" if mixed_type else "(atoms,)"
            raise InputError(f"atom_types has the shape {types.shape}, expected {expected}")
        n = types.shape[-1]
        x = _numbers("coords", coords)
        if x.size % max(3 * n, 1):
            raise InputError(
                f"coords has the shape {x.shape}, which is not a whole number of frames of {n} atoms"
            )
        f = x.size // (3 * n) if n else len(x) if x.ndim else 0
        if types.ndim == 1 or len(types) == 1:
            types = np.broadcast_to(types.reshape(1, n), (f, n))
        if types.shape != (f, n):
            raise InputError(f"atom_types has the shape {types.shape}, and coords is of {f} frames")
        h = None if cells is None else _fitting("cells", cells, [(f, 3, 3)])
        p, q = self.get_dim_fparam(), self.get_dim_aparam()
        for name, value, size in (("fparam", fparam, p), ("aparam", aparam, q)):
            if value is not None and size == 0:
                raise InputError(f"{name} is given, but the model takes none")
        return _Frames(
            x.reshape(f, n, 3),
            h,
            types.astype(np.int32),
            None if fparam is None else _fitting("fparam", fparam, [(f, p), (1, p)]),
            None if aparam is None else _fitting("aparam", aparam, [(f, n, q), (1, n, q), (1, 1, q)]),
            None if charge_spin is None else checked_charge_spin(charge_spin, f),
            None if spin is None else _fitting("spin", spin, [(f, n, 3)]),
        )

    def _in_batches(
        self, frames: _Frames, answer: Callable[..., dict[str, torch.Tensor]]
    ) -> list[dict[str, np.ndarray]]:
        """Calls `answer` with the System, fparam and aparam of one batch of frames after the other."""
        found = []
        for part in self._batches(frames):
            aparam = None if part.aparam is None else part.aparam.reshape(part.types.size, -1)
            result = answer(self._system(part), self._tensor(part.fparam), self._tensor(aparam))
            found.append({name: value.cpu().numpy() for name, value in result.items()})
        return found

    def _batches(self, frames: _Frames) -> Iterator[_Frames]:
        f, n, _ = frames.coords.shape
        at_once = f if self._batch_atoms is None else max(1, self._batch_atoms // max(n, 1))
        for first in range(0, f if n else 0, max(at_once, 1)):
            yield frames.part(slice(first, first + at_once))

    def _system(self, frames: _Frames) -> System:
        f, n = frames.types.shape
        system = from_tensors(
            self._tensor(frames.coords.reshape(-1, 3)),
            self._tensor(frames.types.reshape(-1)),
            self._tensor(frames.cells),
            None,
            self._tensor(np.repeat(np.arange(f, dtype=np.int32), n)),
            self.get_ntypes(),
        )
        system.charge_spin = self._tensor(frames.charge_spin)
        spins = None if frames.spin is None else self._tensor(frames.spin.reshape(-1, 3))
        return self.potential.system_with_spins(system, spins)

    @overload
    def _tensor(self, array: np.ndarray) -> torch.Tensor: ...
    @overload
    def _tensor(self, array: None) -> None: ...
    def _tensor(self, array: np.ndarray | None) -> torch.Tensor | None:
        """A copy on the model's device."""
        return None if array is None else torch.tensor(array, device=self.potential.device)


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        if np.iscomplexobj(value):  # NumPy would drop the imaginary part
            raise TypeError("complex numbers")
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} has something that is not a number: {error}") from error


def _fitting(name: str, value: Any, shapes: list[tuple[int, ...]]) -> np.ndarray:
    """The array in the first of these shapes that has its size, broadcast to the first shape."""
    array = _numbers(name, value)
    require_finite(name, array)
    for shape in shapes:
        if array.size == np.prod(shape):
            return np.broadcast_to(array.reshape(shape), shapes[0])
    raise InputError(f"{name} has the shape {array.shape}, expected {' or '.join(str(s) for s in shapes)}")


def _joined(parts: list[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    if not parts:
        return np.zeros(shape)
    return np.concatenate([part.reshape(-1, *shape[2:]) for part in parts]).reshape(shape)
