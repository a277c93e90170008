"""The committee: its trainings, and its results for labelled frames."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mdops.data.dataset import Dataset, load_dataset
from mdops.data.evaluation import evaluate
from mdops.errors import ConfigError
from mdops.files.lock import waiting
from mdops.learn.config import StudentsConfig
from mdops.learn.jobs import Jobs
from mdops.loading import load
from mdops.models.contract import ENERGY
from mdops.models.registry import outputs_of
from mdops.potential import Potential
from mdops.train.config.read import parse_config
from mdops.train.loop.checkpoint import checkpoints
from mdops.train.loop.folder_lock import NAME as LOCK
from mdops.train.loop.trainer import Trainer

HELD_OUT = 10  # one of so many labels of a round is held out from all students
_CHECKPOINTS = 5  # per training, but at least one every 1000 steps


@dataclass(frozen=True)
class Answers:
    """A committee's results for F labelled frames with N atoms in total.

    Attributes:
        data: the frames.
        forces: (K, N, 3), eV/A, and energies: (K, F), eV, of the K students.
    """

    data: Dataset
    forces: np.ndarray
    energies: np.ndarray

    @property
    def deviation(self) -> np.ndarray:
        """(F,): the largest sqrt(mean_k |F_k - <F>|^2) of an atom, eV/A."""
        off = self.forces - self.forces.mean(0)
        return np.maximum.reduceat(np.sqrt((off**2).sum(2).mean(0)), self.data.offsets[:-1])

    def largest_errors(self) -> np.ndarray:
        """(F,): the largest error of an atom's force, the root mean square over the students, eV/A."""
        off = self.forces - self.data.labels["forces"]
        return np.maximum.reduceat(np.sqrt((off**2).sum(2).mean(0)), self.data.offsets[:-1])

    def errors(self, student: int) -> dict[str, float]:
        """Root mean square errors of one student: "forces", eV/A, and "energy", eV/atom."""
        off = self.forces[student] - self.data.labels["forces"]
        energy = (self.energies[student] - self.data.labels["energy"]) / self.data.sizes()
        return {
            "forces": float(np.sqrt(np.square(off).mean())),
            "energy": float(np.sqrt(np.square(energy).mean())),
        }

    def frame_errors(self, student: int) -> np.ndarray:
        """(F,): the root mean square error of a frame's force components, eV/A."""
        off = np.square(self.forces[student] - self.data.labels["forces"]).mean(1)
        return np.sqrt(np.add.reduceat(off, self.data.offsets[:-1]) / self.data.sizes())


def answers_of(models: Sequence[Potential], data: Dataset) -> Answers:
    """The committee's results for the frames."""
    found = [evaluate(model, data).predictions for model in models]
    return Answers(data, np.stack([p["forces"] for p in found]), np.stack([p["energy"] for p in found]))


def held_out(files: Sequence[Path], type_map: Sequence[str]) -> Dataset:
    """The labels on which no student was trained."""
    return load_dataset(list(files), type_map, leave_out=HELD_OUT, left_out=True)


def model_files(folder: Path, number: int) -> list[Path]:
    """The files of a round's students."""
    return [folder / f"student-{k + 1}" / "model.safetensors" for k in range(number)]


def train(
    folder: Path,
    config: StudentsConfig,
    labels: Sequence[Path],
    type_map: Sequence[str],
    steps: int,
    seed: int,
    device: str,
    jobs: Jobs,
) -> None:
    """Trains the committee on the files of labels, side by side, from random weights. Finished trainings are kept."""
    work = []
    for k, path in enumerate(model_files(folder, config.number)):
        tree = training_input(config.input or {}, labels, type_map, steps, 100 * seed + k)
        work.append((path.parent, tree, device))
    for _ in jobs.run(_train, work):
        pass


def check_input(config: StudentsConfig, type_map: Sequence[str]) -> None:
    """Raises ConfigError if trainings cannot start with the given input, before the teacher is called."""
    tree = training_input(config.input or {}, [Path("labels.extxyz")], type_map, config.steps, 0)
    try:
        parsed = parse_config(tree)
    except ConfigError as error:
        raise ConfigError(f"students.input.{error}") from None
    outputs = outputs_of(parsed.model)
    if outputs != (ENERGY,):
        raise ConfigError(
            f"students.input: these models answer {', '.join(output.name for output in outputs)}, and simulations need "
            "energies whose derivatives are the forces: choose another model.fitting_net.type and loss.type"
        )


def training_input(
    given: Mapping[str, Any], labels: Sequence[Path], type_map: Sequence[str], steps: int, seed: int
) -> dict[str, Any]:
    """The input of one training: mdops' own recipe with the given sections."""
    training = {
        "training_data": {"systems": [str(path.absolute()) for path in labels], "leave_out": HELD_OUT},
        "numb_steps": steps,
        "seed": seed,
        "save_freq": max(min(steps // _CHECKPOINTS, 1000), 1),
        "max_ckpt_keep": 2,
    }
    own = dict(given.get("training", {}))
    if "batch_size" in own:
        training["training_data"]["batch_size"] = own.pop("batch_size")  # type: ignore[index]
    model = {**given.get("model", {}), "type_map": list(type_map)}
    return {**given, "model": model, "training": {**own, **training}}


def _train(folder: Path, tree: dict[str, Any], device: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # After a run was killed, its student may live for another moment.
    with waiting(folder / LOCK):
        pass
    (folder / "input.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    config = parse_config(tree)
    goes_on = bool(checkpoints(folder, config.training.save_ckpt))
    Trainer(config, folder, restart=goes_on, device=device).run()


@lru_cache(maxsize=1)
def _loaded(paths: tuple[str, ...], device: str, stamp: float) -> list[Potential]:
    return [load(path, device=device, overflow="extend") for path in paths]


def committee(folder: Path, number: int, device: str) -> list[Potential]:
    """A round's students, for any number of neighbours; this process caches those of the last round."""
    paths = model_files(folder, number)
    return _loaded(tuple(map(str, paths)), device, paths[0].stat().st_mtime)
