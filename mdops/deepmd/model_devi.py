"""The deviation between the results of several models, and DeePMD-kit's file of deviations."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from mdops.data.dataset import Dataset
from mdops.data.evaluation import Evaluation, evaluate
from mdops.deepmd.deep_pot import DeepPot
from mdops.errors import DataError, InputError
from mdops.files.named import naming
from mdops.potential import Potential

_COLUMNS = [f"{of}_devi_{what}" for what in "vf" for of in ("max", "min", "avg")]


@dataclass(frozen=True)
class ModelDeviation:
    """Deviations in F frames with N atoms in total, as DeePMD-kit defines them; eV and A.

    A deviation is sqrt(mean_k (x_k - <x>)^2) over the models k. For errors, the label takes the place of the mean.

    Attributes:
        data: the frames.
        virial: (F, 9), of each component of the virial divided by the number of atoms.
        forces: (N,), the length of the vector of deviations of the three components of an atom's force.
        energy: (F,), of the energy divided by the number of atoms.
    """

    data: Dataset
    virial: np.ndarray
    forces: np.ndarray
    energy: np.ndarray

    def table(self, frames: np.ndarray | None = None, *, atomic: bool = False) -> np.ndarray:
        """(n, 7) for these frames (all by default): largest, smallest and mean deviation of virial and of forces, then
        that of the energy. The mean of the virial is a root mean square. With `atomic` the deviations of the forces of
        all atoms follow.

        Raises:
            DataError: with `atomic`, frames have different numbers of atoms.
        """
        data = self.data
        frames = np.arange(len(data)) if frames is None else frames
        odd = np.flatnonzero(data.sizes()[frames] != data.sizes()[frames[:1]])
        if atomic and len(odd):
            raise DataError(
                f"{data.name(int(frames[odd[0]]))}: has another number of atoms than the first frame. A table with a "
                "column for each atom needs frames with the same number of atoms"
            )
        forces = [self.forces[data.atoms(int(f))] for f in frames]
        return _table(self.virial[frames], forces, self.energy[frames], atomic)


def model_deviation(
    models: Sequence[Potential],
    data: Dataset,
    *,
    real_error: bool = False,
    relative: float | None = None,
    relative_v: float | None = None,
) -> ModelDeviation:
    """How much the models differ on these frames.

    Args:
        models: with the elements of `data`, in the same order.
        data: `mdops.train.load_dataset(paths, type_map, labelled=False)`.
        real_error: compare with the labels of `data`, not with the models' mean.
        relative, relative_v: divide the deviations of forces, and of virials, by the length of the mean (or label) plus
            this, eV/A and eV.

    Raises:
        InputError: the elements of a model and of the data differ.
        DataError: a model cannot evaluate a frame, or with `real_error` a frame lacks energy, forces or virial.
    """
    for model in models:
        if list(model.type_map) != data.type_map:
            raise InputError(
                "the models must have the same elements in the same order: one has "
                f"{', '.join(model.type_map)}, and the data was read for {', '.join(data.type_map)}"
            )
    answers = _answers(models, data)
    centers = _labels(data) if real_error else {name: x.mean(0) for name, x in answers.items()}
    return ModelDeviation(data, **_deviations(answers, centers, relative, relative_v))


def calc_model_devi(
    coord: Any,
    box: Any,
    atype: Any,
    models: Sequence[DeepPot],
    fname: str | os.PathLike[str] | None = None,
    frequency: int = 1,
    mixed_type: bool = False,
    fparam: Any = None,
    aparam: Any = None,
    real_data: Mapping[str, np.ndarray] | None = None,
    atomic: bool = False,
    relative: float | None = None,
    relative_v: float | None = None,
) -> np.ndarray:
    """DeePMD-kit's function of this name: (F, 8), the step and the columns of `model_devi.out`, with `atomic` also a
    column for each atom.

    Args:
        coord, box, atype, mixed_type, fparam, aparam: as of `DeepPot.eval`.
        models: of the same elements in the same order.
        fname: the file that the table is added to.
        frequency: frame k is step k x frequency.
        real_data: labels, to compute errors: "energy" (F,) and "virial" (F, 9) per atom, "force" (F, n, 3).
        relative, relative_v: as of `model_deviation`.

    Raises:
        InputError: as `DeepPot.eval`; models of different elements.
    """
    if len({tuple(model.get_type_map()) for model in models}) != 1:
        raise InputError("expected one or more models, all with the same elements in the same order")
    found = [model.eval(coord, box, atype, False, fparam, aparam, mixed_type) for model in models]
    energy, force, virial = (np.stack(arrays) for arrays in zip(*found, strict=True))
    _, frames, atoms, _ = force.shape
    answers = {
        "energy": energy[..., 0] / atoms,
        "forces": force.reshape(len(models), -1, 3),
        "virial": virial / atoms,
    }
    centers = {name: x.mean(0) for name, x in answers.items()}
    if real_data is not None:
        names = {"energy": "energy", "forces": "force", "virial": "virial"}
        centers = {name: np.reshape(real_data[names[name]], x.shape) for name, x in centers.items()}
    off = _deviations(answers, centers, relative, relative_v)
    table = _table(off["virial"], list(off["forces"].reshape(frames, atoms)), off["energy"], atomic)
    if fname is not None:
        with naming(Path(fname)), open(fname, "a", encoding="utf-8", errors="surrogateescape") as file:
            _write_table(file, "", table, frequency)
    return np.concatenate([frequency * np.arange(frames)[:, None], table], axis=1)


def _deviations(
    answers: Mapping[str, np.ndarray],
    centers: Mapping[str, np.ndarray],
    relative: float | None,
    relative_v: float | None,
) -> dict[str, np.ndarray]:
    """virial, forces and energy of a ModelDeviation. `answers` has energy (K, F), forces (K, N, 3), virial (K, F, 9) of
    K models, energies and virials per atom; `centers` has the values that they deviate from."""
    off = {name: np.sqrt(np.square(x - centers[name]).mean(0)) for name, x in answers.items()}
    forces, virial = np.linalg.norm(off["forces"], axis=1), off["virial"]
    if relative is not None:
        forces = forces / (np.linalg.norm(centers["forces"], axis=1) + relative)
    if relative_v is not None:
        virial = virial / (np.linalg.norm(centers["virial"], axis=1) + relative_v)[:, None]
    return {"virial": virial, "forces": forces, "energy": off["energy"]}


def _table(virial: np.ndarray, forces: Sequence[np.ndarray], energy: np.ndarray, atomic: bool) -> np.ndarray:
    """The columns of DeePMD-kit's file without the step; `forces` has the deviations of the atoms of each frame."""
    of_forces = np.array([(f.max(), f.min(), f.mean()) for f in forces]).reshape(-1, 3)
    columns = [virial.max(1), virial.min(1), np.linalg.norm(virial, axis=1) / 3, *of_forces.T, energy]
    rows = np.stack(columns, axis=1)
    return np.concatenate([rows, np.stack(forces)], axis=1) if atomic else rows


def _answers(models: Sequence[Potential], data: Dataset) -> dict[str, np.ndarray]:
    """energy (K, F), forces (K, N, 3) and virial (K, F, 9); energies and virials per atom."""
    for model in models:
        model.require_energies("the deviation of models")
    found = [_per_atom(evaluate(model, data), data) for model in models]
    return {name: np.stack([answer[name] for answer in found]) for name in found[0]}


def _labels(data: Dataset) -> dict[str, np.ndarray]:
    for name in ("energy", "forces", "virial"):
        if not data.has(name) or not data.present[name].all():
            frame = int(np.argmin(data.present[name])) if data.has(name) else 0
            raise DataError(f"{data.name(frame)}: has no {name} to compare with")
    return _per_atom(Evaluation(data, data.labels), data)


def _per_atom(evaluation: Evaluation, data: Dataset) -> dict[str, np.ndarray]:
    answers, atoms = evaluation.predictions, data.sizes()
    return {
        "energy": answers["energy"] / atoms,
        "forces": answers["forces"],
        "virial": answers["virial"].reshape(-1, 9) / atoms[:, None],
    }


def write_model_devi(
    path: str | os.PathLike[str], found: ModelDeviation, *, frequency: int = 1, atomic: bool = False
) -> None:
    """Appends a table for each system, as `dp model-devi` does; frame k of a system is step k x frequency.

    Raises:
        DataError: as `ModelDeviation.table`.
        OSError: the file cannot be written.
    """
    data = found.data
    systems = [np.flatnonzero(data.system == k) for k in range(len(data.systems))]
    tables = [found.table(frames, atomic=atomic) for frames in systems]
    with naming(Path(path)), open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
        for name, table in zip(data.systems, tables, strict=True):
            _write_table(file, name, table, frequency)


def _write_table(file: TextIO, system: str, table: np.ndarray, frequency: int) -> None:
    head = f"{'step':10s}" + "".join(f"{column:19s}" for column in [*_COLUMNS, "devi_e"])
    if table.shape[1] > len(_COLUMNS) + 1:
        head += f"{'atm_devi_f(N)':19s}"
    file.write(f"# {system}\n# {head}\n")
    for k, row in enumerate(table):
        file.write(f"{k * frequency:12d}" + "".join(f"{value:19.6e}" for value in row) + "\n")
