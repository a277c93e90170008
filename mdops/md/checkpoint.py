"""The state of a run in one file, replaced as a whole: it is always complete."""

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms

from mdops.errors import InputError
from mdops.files.atomic import replace_file

_VERSION = 5


@dataclasses.dataclass
class Checkpoint:
    """A run after a step.

    Attributes:
        step: the number of steps done.
        physics: of the run, as a dict, with digests of its models and parameters.
        random: the state of the random numbers.
        sums: for means over the whole run, and its drift.
        marks: for each output file, its end.
        arrays: numbers, positions, momenta, cell, pbc.
        inner: the engine's own variables; none with ASE's integrators.
    """

    step: int
    physics: dict[str, Any]
    random: dict[str, Any]
    sums: dict[str, float | None]
    marks: dict[str, dict[str, Any]]
    arrays: dict[str, np.ndarray]
    inner: dict[str, np.ndarray]


def atom_arrays(atoms: Atoms) -> dict[str, np.ndarray]:
    """What changes in a run, and what identifies the atoms."""
    arrays = {name: atoms.arrays[name] for name in ("numbers", "positions", "momenta")}
    return arrays | {"cell": atoms.cell.array, "pbc": atoms.pbc}


def restore_atoms(atoms: Atoms, arrays: dict[str, np.ndarray]) -> None:
    """Sets the atoms to the checkpoint's state.

    Raises InputError if the checkpoint is of other atoms.
    """
    if not np.array_equal(atoms.numbers, arrays["numbers"]) or (atoms.pbc != arrays["pbc"]).any():
        raise InputError("the checkpoint is of another structure: other elements, atoms or pbc")
    atoms.set_cell(arrays["cell"])
    atoms.arrays["positions"][:] = arrays["positions"]
    atoms.set_array("momenta", arrays["momenta"], float, (3,))


def save(path: Path, checkpoint: Checkpoint) -> None:
    """Write to disk, then replace the last one."""
    head = {"version": _VERSION, "step": checkpoint.step, "physics": checkpoint.physics}
    head |= {"random": checkpoint.random, "sums": checkpoint.sums, "marks": checkpoint.marks}
    members: dict[str, Any] = {f"atoms/{name}": value for name, value in checkpoint.arrays.items()}
    members |= {f"inner/{name}": value for name, value in checkpoint.inner.items()}
    buffer = io.BytesIO()
    # No `allow_pickle`: NumPy before 2.1 takes it as another array's name.
    np.savez(buffer, head=np.array(json.dumps(head)), **members)
    replace_file(path, buffer.getbuffer())


def read(path: Path) -> Checkpoint:
    """Raises InputError for a file that is not a checkpoint, or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            head = json.loads(str(file["head"]))
            if head.pop("version") != _VERSION:
                raise InputError(
                    f"{path} is a checkpoint of another version of mdops: continue with that version, or "
                    "start again with --overwrite"
                )
            parts: dict[str, dict[str, np.ndarray]] = {"atoms": {}, "inner": {}}
            for name in file.files:
                if name != "head":
                    part, key = name.split("/", 1)
                    parts[part][key] = file[name]
        return Checkpoint(arrays=parts["atoms"], inner=parts["inner"], **head)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} is not a checkpoint, or damaged ({type(error).__name__}: {error})"
        ) from error
