"""libmdops_core through ctypes, as another language would call it."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mdops.core

OK, INVALID, FILE, UNSUPPORTED, NEIGHBORS, MEMORY, INTERNAL, DEVICE = range(8)
REFUSE, EXTEND = 0, 1
WHOLE, SHORT_RANGE, DIPOLES = 0, 1, 2
PRECISIONS = {"float32": 0, "float64": 1}
I32, I64, F64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_double


def fields(text: str, kind: Any) -> list[tuple[str, Any]]:
    return [(name, kind) for name in text.split()]


class Sized(ctypes.Structure):
    """Begins with its size, which is set."""

    _fields_ = [("struct_size", ctypes.c_size_t)]

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(ctypes.sizeof(type(self)), *args, **fields)


class Options(Sized):
    _fields_ = [
        *fields("precision overflow threads", I32),
        ("device", ctypes.c_char_p),
        ("part", I32),
        ("python", ctypes.c_char_p),
        ("charge_spin", ctypes.c_void_p),
    ]


class Info(Sized):
    _fields_ = [
        *fields("cutoff shortest", F64),
        *fields("ntypes fparam aparam needs_fparam precision threads gpu", I32),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("has_dipole", ctypes.POINTER(I32)),
        *fields("charges dipole_charges", ctypes.POINTER(F64)),
        ("beta", F64),
        *fields("lacks_charges in_python passes_messages", I32),
        ("magnetic", ctypes.POINTER(I32)),
        ("virtual_scale", F64),
    ]


class Neighbors(Sized):
    _fields_ = [
        *fields("atoms ghosts", I64),
        *fields("types counts rows", ctypes.c_void_p),
        ("mask", I32),
        *fields("sources exchange", ctypes.c_void_p),
    ]


class Input(Sized):
    _fields_ = [
        *fields("atoms ghosts", I64),
        *fields("types positions cell periodic list fparam aparam field spins", ctypes.c_void_p),
    ]


class Output(Sized):
    _fields_ = [
        ("energy", F64),
        ("virial", F64 * 9),
        ("nearest", F64),
        ("atom", I64),
        *fields("forces atom_energy atom_virial dipole magnetic_forces", ctypes.c_void_p),
    ]


def library() -> ctypes.CDLL:
    """A handle of its own for each test would be the same one."""
    found = ctypes.CDLL(str(mdops.core.library()))
    found.mdops_message.restype = ctypes.c_char_p
    found.mdops_free.argtypes = found.mdops_list_free.argtypes = [ctypes.c_void_p]
    found.mdops_release.argtypes = [ctypes.c_void_p] * 2
    found.mdops_free.restype = found.mdops_list_free.restype = found.mdops_release.restype = None
    return found


class CoreError(Exception):
    def __init__(self, status: int, message: str, atom: int) -> None:
        super().__init__(message)
        self.status, self.atom = status, atom


def check(status: int, output: "Output | None" = None) -> None:
    if status != OK:
        raise CoreError(status, library().mdops_message().decode(), -1 if output is None else output.atom)


def pointer(array: np.ndarray | None) -> int | None:
    return None if array is None else array.ctypes.data


def array(values: Any, dtype: Any = np.float64) -> np.ndarray | None:
    return None if values is None else np.ascontiguousarray(values, dtype)


def given(arrays: Sequence[Any], atoms: int, ghosts: int, near: "List | None" = None) -> Input:
    """Of types, positions, cell and periodic, then fparam, aparam, field and spins; of NumPy, or tensors of a
    GPU."""
    places = [x.data_ptr() if hasattr(x, "data_ptr") else pointer(x) for x in arrays]
    return Input(atoms, ghosts, *places[:4], near.handle if near else None, *places[4:])


class List:
    """The caller's neighbours: rows of indices."""

    def __init__(
        self, types: Any, atoms: int, rows: Sequence[Any], ntypes: int, mask: int = 0, sources: Any = None
    ) -> None:
        self.handle = ctypes.c_void_p()
        self.fill(types, atoms, rows, ntypes, mask, sources)

    def fill(
        self, types: Any, atoms: int, rows: Sequence[Any], ntypes: int, mask: int = 0, sources: Any = None
    ) -> None:
        types, sources = array(types, np.int32), array(sources, np.int32)
        own = [array(row, np.int32) for row in rows]
        counts = array([len(row) for row in own], np.int32)
        places = (ctypes.c_void_p * max(1, len(own)))(*[row.ctypes.data for row in own])
        neighbors = Neighbors(
            atoms,
            len(types) - atoms,
            pointer(types),
            pointer(counts),
            ctypes.addressof(places),
            mask,
            pointer(sources),
        )
        self.shape = atoms, len(types) - atoms
        check(library().mdops_list_fill(ctypes.byref(neighbors), ntypes, ctypes.byref(self.handle)))

    @classmethod
    def searched(
        cls,
        model: "Model",
        positions: Any,
        types: Any,
        atoms: int,
        skin: float = 0.0,
        cell: Any = None,
        periodic: Any = None,
    ) -> "List":
        """What the model finds around the first atoms, the others being ghosts."""
        found = cls.__new__(cls)
        found.handle, found.shape = ctypes.c_void_p(), (atoms, len(positions) - atoms)
        kept = [array(types, np.int32), array(positions), array(cell), array(periodic, np.int32), None, None]
        input = given(kept, *found.shape)
        search = library().mdops_list_search
        check(search(model.handle, ctypes.byref(input), F64(skin), ctypes.byref(found.handle)))
        return found

    def __del__(self) -> None:
        library().mdops_list_free(self.handle)


class Model:
    def __init__(
        self,
        path: Path,
        precision: str = "float64",
        overflow: int = REFUSE,
        threads: int = 1,
        device: str | None = None,
        part: int = WHOLE,
        python: str | None = None,
        charge_spin: Sequence[float] | None = None,
    ) -> None:
        self.handle, self.memory = ctypes.c_void_p(), list[ctypes.c_void_p]()
        name, program = (text.encode() if text else None for text in (device, python))
        condition = array(charge_spin)
        options = Options(PRECISIONS[precision], overflow, threads, name, part, program, pointer(condition))
        check(library().mdops_load(str(path).encode(), ctypes.byref(options), ctypes.byref(self.handle)))

    def __del__(self) -> None:
        for memory in self.memory:
            library().mdops_release(self.handle, memory)
        library().mdops_free(self.handle)

    def info(self) -> Info:
        info = Info()
        check(library().mdops_describe(self.handle, ctypes.byref(info)))
        return info

    def allocated(self, shape: tuple[int, ...]) -> np.ndarray:
        """Numbers in memory that the device reaches at its best, until the model goes."""
        memory, count = ctypes.c_void_p(), int(np.prod(shape))
        check(library().mdops_allocate(self.handle, I64(8 * count), ctypes.byref(memory)))
        self.memory.append(memory)
        return np.ctypeslib.as_array(ctypes.cast(memory, ctypes.POINTER(F64)), (count,)).reshape(shape)

    def set_threads(self, threads: int) -> None:
        check(library().mdops_set_threads(self.handle, threads))

    def compute(
        self,
        positions: Any,
        types: Any = None,
        cell: Any = None,
        periodic: Any = None,
        near: List | None = None,
        fparam: Any = None,
        aparam: Any = None,
        field: Any = None,
        spins: Any = None,
        *,
        atom_virial: bool = True,
    ) -> dict[str, Any]:
        positions = array(positions)
        kept = [
            array(types, np.int32),
            positions,
            array(cell),
            array(periodic, np.int32),
            array(fparam),
            array(aparam),
            array(field),
            array(spins),
        ]
        atoms, ghosts = near.shape if near else (len(positions), 0)
        input = given(kept, atoms, ghosts, near)
        out = {
            "forces": np.full((atoms + ghosts, 3), 1e9),
            "atom_energy": np.full(atoms, 1e9),
            **({"atom_virial": np.full((atoms + ghosts, 3, 3), 1e9)} if atom_virial else {}),
            **({"dipole": np.full((atoms, 3), 1e9)} if self.info().has_dipole else {}),
            **({"magnetic_forces": np.full((atoms + ghosts, 3), 1e9)} if self.info().magnetic else {}),
        }
        output = Output(**{name: pointer(value) for name, value in out.items()})
        check(library().mdops_compute(self.handle, ctypes.byref(input), ctypes.byref(output)), output)
        return {
            "energy": output.energy,
            "virial": np.array(output.virial).reshape(3, 3),
            "nearest": output.nearest,
            "atom": output.atom,
            **out,
        }
