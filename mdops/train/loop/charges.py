"""Labels minus the part of charges beyond the cutoff, for training with a modifier (mdops.long_range)."""

import hashlib
import io
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdops.data.dataset import Dataset
from mdops.digest import digest
from mdops.errors import ConfigError, DataError, InputError
from mdops.files.atomic import replace_file
from mdops.loading import load_charges
from mdops.long_range import DipoleCharge
from mdops.progress import StepProgress
from mdops.system import System
from mdops.train.loop.distributed import Processes
from mdops.train.loss import Loss

_NAMES = ("energy", "forces", "virial")
_LONG = 10.0  # seconds: longer work is kept in a file


def take_off_charges(
    data: Dataset, section: Any, type_map: list[str], folder: Path, processes: Processes
) -> None:
    """Subtracts the charges' part from energies, forces and virials of all frames, in place, as DeePMD-kit does.

    One process computes it, frame by frame, with progress on stderr. Long work is kept in the folder,
    charges-<digest>.npz, for a restart.

    Args:
        section: `model.modifier` of the input. type_map: that of the input.

    Raises:
        ConfigError: the dipole model has other types. DataError: a frame is not periodic, or one that the dipole model
            refuses. ModelFileError, UnsupportedModelError: see `mdops.loading.load_charges`.
    """

    def compute() -> dict[str, np.ndarray]:
        charges = load_charges(asdict(section), Path())
        if charges.model.type_map != type_map:
            raise ConfigError(
                f"model.modifier.model_name: {section.model_name} has the types {', '.join(charges.model.type_map)}, "
                f"expected those of the model, {', '.join(type_map)}"
            )
        return _kept(data, charges, folder / f"charges-{_digest(data, charges, asdict(section))}.npz")

    found = processes.from_first(compute)
    for name in filter(data.has, _NAMES):
        present = data.present[name]
        rows = data.rows(name, np.flatnonzero(present))
        data.labels[name][rows] -= found[name][rows]


def require_own_labels(loss: Loss) -> None:
    """Raises ConfigError if the loss uses labels that keep the charges' part."""
    whole = [name for name in loss.terms if name not in _NAMES]
    if whole:
        raise ConfigError(
            f"model.modifier: is of energies, forces and virials, and the loss is of {', '.join(whole)}, too: set "
            f"{', '.join(place for name in whole for place in loss.keys(name))} to 0"
        )


def _digest(data: Dataset, charges: DipoleCharge, section: Mapping[str, Any]) -> str:
    """A name for the result."""
    found = hashlib.sha256(json.dumps([data.type_map, section], sort_keys=True).encode())
    found.update(digest(charges.model).encode())
    for array in (data.offsets, data.positions, data.types, data.cell):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def _kept(data: Dataset, charges: DipoleCharge, path: Path) -> dict[str, np.ndarray]:
    """The charges' part of all frames: energy (F,), forces (N, 3) and virial (F, 3, 3), read or computed."""
    if path.is_file():
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in _NAMES}
    begin, found = time.perf_counter(), _computed(data, charges)
    if time.perf_counter() - begin > _LONG:
        file = io.BytesIO()
        np.savez(file, **found)  # type: ignore[arg-type]
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, file.getbuffer())
    return found


def _computed(data: Dataset, charges: DipoleCharge) -> dict[str, np.ndarray]:
    shapes: dict[str, tuple[int, ...]] = {
        "energy": (len(data),),
        "forces": (len(data.positions), 3),
        "virial": (len(data), 3, 3),
    }
    found = {name: np.zeros(shape) for name, shape in shapes.items()}
    with StepProgress(0, len(data)) as progress:
        for frame in range(len(data)):
            for name, value in _of_frame(data, frame, charges).items():
                if name in found:
                    found[name][data.rows(name, np.array([frame]))] = value
            if frame + 1 < len(data) and progress.is_due(frame + 1):
                progress.show(frame + 1, "frames, their charges beyond the cutoff")
    return found


def _of_frame(data: Dataset, frame: int, charges: DipoleCharge) -> dict[str, np.ndarray]:
    atoms = data.atoms(frame)
    system = System(
        torch.tensor(data.positions[atoms]),
        torch.tensor(data.types[atoms]),
        torch.tensor(data.cell[frame : frame + 1]),
        torch.tensor(data.pbc[frame : frame + 1]),
        torch.zeros(atoms.stop - atoms.start, dtype=torch.int32),
    )
    try:
        answers = charges.answers(system, data.type_map)
    except InputError as error:
        raise DataError(f"{data.name(frame)}: {error}") from error
    return {name: value.numpy() for name, value in answers.items()}
