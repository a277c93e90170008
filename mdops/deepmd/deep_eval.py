"""A model with the arguments of DeePMD-kit's `deepmd.infer.DeepEval`: what the classes of all kinds of models share."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np
import torch
from ase.data import atomic_numbers

from mdops.errors import InputError, UnsupportedModelError
from mdops.flags import require_flags
from mdops.loading import load
from mdops.models.charge_spin import charge_spin_defaults
from mdops.models.registry import definition
from mdops.models.type_embedding import TypeEmbedding
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


class DeepEval:
    """`DeepEval("model.dp")` is of the class for the model's outputs: DeepPot, DeepDipole, DeepPolar, DeepDOS,
    DeepPopulation or DeepProperty. For programs that were written for DeePMD-kit.

    The results are DeePMD-kit's: they are computed in float64, and if there are more neighbours than the model's `sel`,
    the farthest are dropped, unless `overflow` says otherwise. Many frames are computed together.

    Attributes:
        potential: the model.
        OUTPUT: the name of the output of the class's models; "": any other.
        eval: the results, as each class defines them.
    """

    OUTPUT: ClassVar[str | None] = None
    _CLASSES: ClassVar[dict[str, type["DeepEval"]]] = {}
    eval: Callable[..., Any]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "OUTPUT" in vars(cls):
            DeepEval._CLASSES[str(cls.OUTPUT)] = cls

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
        neighbor_list: Any = None,
        nlist_backend: str = "auto",
        no_jit: bool = False,
    ) -> None:
        """Reads the model.

        Args:
            model_file: a file in a format of docs/reference/formats.md, or a Potential, which is used as it is.
            auto_batch_size: the number of atoms that are evaluated together (True: suits the device; False: all).
            head, device, dtype, spline, overflow: for files, as of `mdops.load`.
            neighbor_list, nlist_backend, no_jit: DeePMD-kit's, of no effect: mdops makes its own lists.

        Raises:
            ModelFileError, UnsupportedModelError, InputError: as `mdops.load`.
            UnsupportedModelError: the class is for other outputs than the model's.
        """
        require_flags(spline=spline)
        self.potential = (
            model_file
            if isinstance(model_file, Potential)
            else load(model_file, head=head, device=device, dtype=dtype, spline=spline, overflow=overflow)
        )
        if type(self) is DeepEval:
            self.__class__ = self.model_type
        self._require_outputs()
        if not isinstance(auto_batch_size, bool | int | np.integer) or (
            auto_batch_size < 1 and auto_batch_size is not False
        ):
            raise InputError(
                f"auto_batch_size is {auto_batch_size!r}, expected True, False or a number of atoms"
            )
        self._batch_atoms: int | None = (
            None
            if auto_batch_size is False
            else _BATCH_ATOMS[self.potential.device.type] if auto_batch_size is True else int(auto_batch_size)
        )  # fmt: skip

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
        given = coords, cells, atom_types, fparam, aparam, mixed_type, charge_spin, spin
        return self._rows(given, dtype, lambda system, *_: self.potential.descriptors(system))

    def eval_fitting_last_layer(
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
        """What the last layer of the fitting net gets for each atom, (F, n, H); arguments as of `eval_descriptor`.

        Raises:
            InputError: as `eval`. UnsupportedModelError: the model has no fitting net, or several models.
        """
        given = coords, cells, atom_types, fparam, aparam, mixed_type, charge_spin, spin
        return self._rows(given, dtype, self.potential.last_hidden)

    def eval_typeebd(self) -> np.ndarray:
        """The embeddings of the types, (ntypes + 1, W), those of several parts side by side; the last row is 0.

        Raises UnsupportedModelError if the model has none."""
        nets = [part for part in self.potential.model.modules() if isinstance(part, TypeEmbedding)]
        if not nets:
            raise UnsupportedModelError(f"{self.potential.kind} has no embedding of types")
        found = torch.cat([net() for net in nets], 1).detach().cpu().numpy()
        return np.pad(found, ((0, 1), (0, 0)))

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

    def has_chg_spin_ebd(self) -> bool:
        """Whether the model has an embedding of charge and multiplicity."""
        return bool(charge_spin_defaults(self.potential.model))

    def has_default_chg_spin(self) -> bool:
        """Whether it has a default of these."""
        return any(default is not None for default in charge_spin_defaults(self.potential.model))

    def get_sel_type(self) -> list[int]:
        """The types that have an output."""
        has = self.potential.model.has_energy.tolist()
        return [t for t in range(self.get_ntypes()) if has[t]]

    def get_model_def_script(self) -> dict[str, Any]:
        """The section `model` of the training input that makes such a model."""
        model = self.potential.model
        known: dict[str, Any] | None = self.potential.source.get("model_def_script")
        return known or json.loads(json.dumps(definition("model", model.to_tree())))

    def get_model_size(self) -> dict[str, int]:
        """The numbers of parameters of descriptor and fitting net, and their sum ("total")."""
        names, parts = ("descriptor", "fitting"), list(self.potential.model.named_parameters())
        counts = [sum(p.numel() for name, p in parts if part in name.split(".")) for part in names]
        return {"descriptor": counts[0], "fitting-net": counts[1], "total": sum(counts)}

    def get_observed_types(self) -> dict[str, Any]:
        """The elements of the training data ("observed_type") and their number ("type_num"). Of files that do not have
        them: those with a bias, by atomic number."""
        known = self.get_model_def_script().get("info", {}).get("observed_type")
        if known is None:
            elements, bias = self.get_type_map(), self.potential.model.out_bias.abs() > 1e-6
            biased = bias.view(len(bias), -1).any(1).tolist()
            found = [element for element, has in zip(elements, biased, strict=False) if has]
            known = sorted(found, key=lambda element: atomic_numbers.get(element, math.inf))
        return {"type_num": len(known), "observed_type": known}

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

    @property
    def model_type(self) -> type["DeepEval"]:
        """The class for the model's outputs."""
        return self._CLASSES.get(self.potential.model.outputs[0].name, self._CLASSES[""])

    has_efield = has_hessian = False

    def close(self) -> None:
        """Nothing is held open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- Implementation

    def _require_outputs(self) -> None:
        """Raises UnsupportedModelError for a model of other outputs than the class is for."""
        if not isinstance(self, self.model_type):
            raise UnsupportedModelError(
                f"{type(self).__name__} is not for models of {self.potential.model.outputs[0].name}: use "
                f"{self.model_type.__name__}, or DeepEval, which takes the class for the model's outputs"
            )

    def _frames(
        self,
        coords: Any,
        cells: Any,
        atom_types: Any,
        fparam: Any,
        aparam: Any,
        mixed_type: bool,
        charge_spin: Any,
        spin: Any = None,
    ) -> _Frames:
        """The arguments of `eval` in their full shapes."""
        require_flags(mixed_type=mixed_type)
        types = _types(atom_types, self.get_ntypes())
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
        h = None if cells is None else fitting("cells", cells, [(f, 3, 3)])
        p, q = self.get_dim_fparam(), self.get_dim_aparam()
        for name, value, size in (("fparam", fparam, p), ("aparam", aparam, q)):
            if value is not None and size == 0 and np.size(value):
                raise InputError(f"{name} is given, but the model takes none")
        return _Frames(
            x.reshape(f, n, 3),
            h,
            types,
            None if fparam is None or p == 0 else fitting("fparam", fparam, [(f, p), (1, p)]),
            None
            if aparam is None or q == 0
            else fitting("aparam", aparam, [(f, n, q), (1, n, q), (1, 1, q)]),
            None if charge_spin is None else checked_charge_spin(charge_spin, f),
            None if spin is None else fitting("spin", spin, [(f, n, 3)]),
        )

    def _outputs(self, frames: _Frames) -> tuple[np.ndarray, ...]:
        """The model's first output: (F, W) of systems, unless only atoms have it, and (F, n, W) of atoms."""
        (f, n), output = frames.types.shape, self.potential.model.outputs[0]
        width = math.prod(output.shape)
        of_systems = {output.name: (f, width)} if output.extensive or output.intensive else {}
        return self._answers(frames, {**of_systems, output.atom_name: (f, n, width)})

    def _answers(
        self, frames: _Frames, shapes: Mapping[str, tuple[int, ...]], *, atom_virial: bool = False
    ) -> tuple[np.ndarray, ...]:
        """These results of `Potential.evaluate_atoms`, in these shapes."""

        def answer(system: System, spins: Any, fparam: Any, aparam: Any) -> dict[str, torch.Tensor]:
            return self.potential.evaluate_atoms(system, fparam, aparam, spins=spins, atom_virial=atom_virial)

        found = self._in_batches(frames, answer)
        return tuple(_joined([part[name] for part in found], shape) for name, shape in shapes.items())

    def _rows(
        self, given: tuple[Any, ...], dtype: str, rows: Callable[[System, Any, Any], torch.Tensor]
    ) -> np.ndarray:
        """(F, n, W): the numbers of each atom that `rows` gives, for these arguments of `_frames`."""
        if dtype not in ("native", *_DTYPES):
            raise InputError(f"dtype is {dtype!r}, expected 'fp32', 'fp64' or 'native'")
        frames, spin = self._frames(*given), self.potential.model.spin

        def answer(system: System, spins: Any, fparam: Any, aparam: Any) -> dict[str, torch.Tensor]:
            system = self.potential.system_with_spins(system, spins)
            found = rows(system, fparam, aparam if spin is None else spin.rows_of(aparam))
            return {"rows": found[:: 2 if system.paired else 1]}

        found = self._in_batches(frames, answer)
        shape = *frames.types.shape, found[0]["rows"].shape[1] if found else 0
        native = np.float32 if self.potential.dtype == torch.float32 else np.float64
        return _joined([part["rows"] for part in found], shape).astype(_DTYPES.get(dtype, native), copy=False)

    def _in_batches(
        self, frames: _Frames, answer: Callable[..., dict[str, torch.Tensor]]
    ) -> list[dict[str, np.ndarray]]:
        """Calls `answer` with the System, spins, fparam and aparam of one batch of frames after the other."""
        found = []
        for part in self._batches(frames):
            spins, aparam = (
                None if rows is None else self._tensor(rows.reshape(part.types.size, -1))
                for rows in (part.spin, part.aparam)
            )
            result = answer(self._system(part), spins, self._tensor(part.fparam), aparam)
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
        return system

    @overload
    def _tensor(self, array: np.ndarray) -> torch.Tensor: ...
    @overload
    def _tensor(self, array: None) -> None: ...
    def _tensor(self, array: np.ndarray | None) -> torch.Tensor | None:
        """A copy on the model's device."""
        return None if array is None else torch.tensor(array, device=self.potential.device)


def _types(value: Any, ntypes: int) -> np.ndarray:
    """int32, each -1 .. ntypes - 1."""
    try:
        types = np.asarray(value)
    except ValueError as error:
        raise InputError(f"atom_types has rows of several lengths: {error}") from error
    whole = types.dtype.kind in "biu" or (types.dtype.kind == "f" and bool((types == np.floor(types)).all()))
    if types.size and not whole:
        raise InputError(f"atom_types are {types.dtype}, expected integers")
    if types.size and types.ndim:  # before a cast that would wrap them
        outside = (types < -1) | (types >= ntypes)
        if outside.any():
            place = np.unravel_index(np.argmax(outside), types.shape)
            raise InputError(
                f"atom_types{[int(k) for k in place]} is {types[place]}, expected -1 .. {ntypes - 1}"
            )
    return types.astype(np.int32)


def _numbers(name: str, value: Any) -> np.ndarray:
    try:
        if np.iscomplexobj(value):  # NumPy would drop the imaginary part
            raise TypeError("complex numbers")
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor with a gradient
        raise InputError(f"{name} has something that is not a number: {error}") from error


def fitting(name: str, value: Any, shapes: list[tuple[int, ...]]) -> np.ndarray:
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
