"""The deviation between the results of several models, and DeePMD-kit's file of deviations."""

import os
from collections.abc import Iterable, Mapping, Sequence
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

_OF_ATOMS = ("forces", "force_mag")


@dataclass(frozen=True)
class ModelDeviation:
    """Deviations in F frames with N atoms in total, as DeePMD-kit defines them; eV and A.

    A deviation is sqrt(mean_k (x_k - <x>)^2) over the models k. For errors, the label takes the place of the mean.

    Attributes:
        data: the frames.
        virial: (F, 9), of each component of the virial divided by the number of atoms.
        forces: (N,), the length of the vector of deviations of the three components of an atom's force.
        energy: (F,), of the energy divided by the number of atoms.
        force_mag: (N,), as `forces`, of magnetic forces, 0 for atoms without moments; None: the models have none.
    """

    data: Dataset
    virial: np.ndarray
    forces: np.ndarray
    energy: np.ndarray
    force_mag: np.ndarray | None = None

    def table(self, frames: np.ndarray | None = None, *, atomic: bool = False) -> np.ndarray:
        """(n, 7) for these frames (all by default): largest, smallest and mean deviation of virial and of forces, then
        that of the energy. The mean of the virial is a root mean square. With magnetic moments (n, 10): those of
        magnetic forces are before that of the energy. With `atomic` the deviations of the forces of all atoms follow.

        Raises:
            DataError: with `atomic`, frames have different numbers of atoms.
        """
        data = self.data
        frames = np.arange(len(data)) if frames is None else frames
        odd = np.flatnonzero(data.sizes(frames) != data.sizes(frames[:1]))
        if atomic and len(odd):
            raise DataError(
                f"{data.name(int(frames[odd[0]]))}: has another number of atoms than the first frame. A table with a "
                "column for each atom needs frames with the same number of atoms"
            )
        both = [x for x in (self.forces, self.force_mag) if x is not None]
        of_atoms = [[x[data.atoms(int(f))] for f in frames] for x in both]
        return _table(self.virial[frames], of_atoms, self.energy[frames], atomic)


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
        data: `mdops.train.load_dataset(paths, type_map, labelled=False)`; for models with magnetic moments
            `mdops.data.evaluation.load_for(models[0], paths, labelled=False)`.
        real_error: compare with the labels of `data`, not with the models' mean.
        relative, relative_v: divide the deviations of forces (also magnetic ones), and of virials, by the length of the
            mean (or label) plus this, eV/A and eV.

    Raises:
        InputError: the elements of a model and of the data differ, or only some models have magnetic moments.
        DataError: a model cannot evaluate a frame, or with `real_error` a frame lacks energy, forces or virial.
    """
    for model in models:
        if list(model.type_map) != data.type_map:
            raise InputError(
                "the models must have the same elements in the same order: one has "
                f"{', '.join(model.type_map)}, and the data was read for {', '.join(data.type_map)}"
            )
    if len({model.model.spin is None for model in models}) > 1:
        raise InputError("some of the models have magnetic moments, and the others have none")
    answers = _answers(models, data)
    centers = _labels(data, answers) if real_error else {name: x.mean(0) for name, x in answers.items()}
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
    spin: Any = None,
) -> np.ndarray:
    """DeePMD-kit's function of this name: (F, 8), the step and the columns of `model_devi.out`, with `atomic` also a
    column for each atom. (F, 11) for models with magnetic moments, which DeePMD-kit's function does not take.

    Args:
        coord, box, atype, mixed_type, fparam, aparam, spin: as of `DeepPot.eval`.
        models: of the same elements in the same order.
        fname: the file that the table is added to.
        frequency: frame k is step k x frequency.
        real_data: labels, to compute errors: "energy" (F,) and "virial" (F, 9) per atom, "force" and with moments
            "force_mag" (F, n, 3).
        relative, relative_v: as of `model_deviation`.

    Raises:
        InputError: as `DeepPot.eval`; models of different elements.
    """
    if len({tuple(model.get_type_map()) for model in models}) != 1:
        raise InputError("expected one or more models, all with the same elements in the same order")
    found = [model.eval(coord, box, atype, False, fparam, aparam, mixed_type, spin=spin) for model in models]
    energy, force, virial, *magnetic = (np.stack(arrays) for arrays in zip(*found, strict=True))
    _, frames, atoms, _ = force.shape
    answers = {
        "energy": energy[..., 0] / atoms,
        "forces": force.reshape(len(models), -1, 3),
        "virial": virial / atoms,
    }
    if magnetic:  # with the mask of atoms
        answers["force_mag"] = magnetic[0].reshape(len(models), -1, 3)
    centers = {name: x.mean(0) for name, x in answers.items()}
    if real_data is not None:
        names = {"force" if name == "forces" else name: name for name in centers}
        if lacking := sorted(set(names) - set(real_data)):
            raise InputError(f"real_data has no {', '.join(lacking)}: give {', '.join(names)}")
        centers = {own: np.reshape(real_data[name], centers[own].shape) for name, own in names.items()}
    off = _deviations(answers, centers, relative, relative_v)
    of_atoms = [list(off[name].reshape(frames, atoms)) for name in _OF_ATOMS if name in off]
    table = _table(off["virial"], of_atoms, off["energy"], atomic)
    if fname is not None:
        with naming(Path(fname)), open(fname, "a", encoding="utf-8", errors="surrogateescape") as file:
            _write_table(file, "", table, frequency, bool(magnetic))
    return np.concatenate([frequency * np.arange(frames)[:, None], table], axis=1)


def _deviations(
    answers: Mapping[str, np.ndarray],
    centers: Mapping[str, np.ndarray],
    relative: float | None,
    relative_v: float | None,
) -> dict[str, np.ndarray]:
    """The arrays of a ModelDeviation. `answers` has energy (K, F), forces and force_mag (K, N, 3) and virial (K, F, 9)
    of K models, energies and virials per atom; `centers` has the values that they deviate from."""
    off = {name: np.sqrt(np.square(x - centers[name]).mean(0)) for name, x in answers.items()}
    for name in set(_OF_ATOMS) & set(off):
        off[name] = np.linalg.norm(off[name], axis=1)
        if relative is not None:
            off[name] = off[name] / (np.linalg.norm(centers[name], axis=1) + relative)
    if relative_v is not None:
        off["virial"] = off["virial"] / (np.linalg.norm(centers["virial"], axis=1) + relative_v)[:, None]
    return off


def _table(
    virial: np.ndarray, of_atoms: Sequence[Sequence[np.ndarray]], energy: np.ndarray, atomic: bool
) -> np.ndarray:
    """The columns of DeePMD-kit's file without the step; `of_atoms` has the deviations of the atoms' forces in each
    frame, and those of magnetic forces, if there are some."""
    columns = [virial.max(1), virial.min(1), np.linalg.norm(virial, axis=1) / 3]
    for frames in of_atoms:
        columns += np.array([(f.max(), f.min(), f.mean()) for f in frames]).reshape(-1, 3).T.tolist()
    rows = np.stack([*columns, energy], axis=1)
    return np.concatenate([rows, np.stack(of_atoms[0])], axis=1) if atomic else rows


def _answers(models: Sequence[Potential], data: Dataset) -> dict[str, np.ndarray]:
    """Of each model, by name, as `_deviations` takes them."""
    for model in models:
        model.require_energies("the deviation of models")
    found = [_per_atom(evaluate(model, data)) for model in models]
    return {name: np.stack([answer[name] for answer in found]) for name in found[0]}


def _labels(data: Dataset, names: Iterable[str]) -> dict[str, np.ndarray]:
    for name in names:
        if not data.has(name) or not data.present[name].all():
            frame = int(np.argmin(data.present[name])) if data.has(name) else 0
            raise DataError(f"{data.name(frame)}: has no {name} to compare with")
    return _per_atom(Evaluation(data, data.labels))


def _per_atom(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Energies and virials divided by the number of atoms, and rows of atoms."""
    data, answers = evaluation.data, evaluation.predictions
    atoms, step = data.counted(), 2 if data.paired else 1
    found = {
        "energy": answers["energy"] / atoms,
        "forces": answers["forces"][::step],
        "virial": answers["virial"].reshape(-1, 9) / atoms[:, None],
    }
    return found | ({"force_mag": answers["force_mag"][step - 1 :: step]} if "force_mag" in answers else {})


def write_model_devi(
    path: str | os.PathLike[str], found: ModelDeviation, *, frequency: int = 1, atomic: bool = False
) -> None:
    """Appends a table for each system, as `dp model-devi` does; frame k of a system is step k x frequency.

    Raises:
        DataError: as `ModelDeviation.table`.
        OSError: the file cannot be written.
    """
    data = found.data
    systems = data.frames_of_systems()
    tables = [found.table(frames, atomic=atomic) for frames in systems]
    with naming(Path(path)), open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
        for name, table in zip(data.systems, tables, strict=True):
            _write_table(file, name, table, frequency, found.force_mag is not None)


def _write_table(file: TextIO, system: str, table: np.ndarray, frequency: int, magnetic: bool) -> None:
    kinds = ("v", "fr", "fm") if magnetic else ("v", "f")  # as DeePMD-kit's pair styles name them
    columns = [f"{of}_devi_{what}" for what in kinds for of in ("max", "min", "avg")] + ["devi_e"]
    head = f"{'step':10s}" + "".join(f"{column:19s}" for column in columns)
    if table.shape[1] > len(columns):
        head += f"{'atm_devi_f(N)':19s}"
    file.write(f"# {system}\n# {head}\n")
    for k, row in enumerate(table):
        file.write(f"{k * frequency:12d}" + "".join(f"{value:19.6e}" for value in row) + "\n")
