"""Errors over all validation data during a training, and the best weights so far: DeePMD-kit's `validating`
section."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdops.data.batch import make_batch
from mdops.data.dataset import Dataset
from mdops.errors import ConfigError
from mdops.potential import Potential
from mdops.train.config.sections import Config
from mdops.train.loop.distributed import Processes
from mdops.train.loop.frames import Frames
from mdops.train.loop.update import predict
from mdops.train.loss.base import label_errors

_LABELS = {"E": "energy", "F": "forces", "S": "virial", "V": "virial"}
_UNITS = {"E": "meV/atom", "F": "meV/Å", "S": "meV/Å³", "V": "meV/atom"}
_PER_UNIT = 1000  # meV in an eV
_BATCH_ATOMS = 4096


class FullValidation:
    """The validations over all frames of one training, of its weights or their average.

    Attributes:
        averaged: whether it uses the average of the weights.
        table: the file of all errors. best_files: the files of the best weights.
        records: (error, step) of the best validations so far, the best first.
    """

    def __init__(self, config: Config, steps: int, folder: Path, frames: Frames, *, averaged: bool) -> None:
        """
        Args:
            config: the training input.
            steps: of the whole training.
            folder: that of the training.
            frames: the validation data.

        Raises:
            ConfigError: no frame has the label that the metric is of.
        """
        full = config.validating
        self.averaged, self.frames = averaged, frames
        self.records: list[tuple[float, int]] = []
        self.metric, self._kept = full.validation_metric, full.max_best_ckpt
        self._start, self._interval = _first_step(full.full_val_start, steps), full.validation_freq
        second_rank = "V" if self.metric[0] == "V" else "S"
        self._shown = [f"{name}:{kind}" for name in f"EF{second_rank}" for kind in ("MAE", "RMSE")]
        self.best_files = best_files(config, folder)[averaged]
        self.table = tables(config, folder)[averaged]
        self._saves = full.save_best
        if self.metric not in self._measurable(frames.data):
            raise ConfigError(
                f"validating.validation_metric: is {self.metric!r}, and no frame of training.validation_data has "
                f"{'a cell and ' if self.metric[0] in 'SV' else ''}the label {_LABELS[self.metric[0]]}"
            )

    def _measurable(self, data: Dataset) -> list[str]:
        """The metrics with labels in some frame."""
        has = {name: data.present[label].copy() for name, label in _LABELS.items() if data.has(label)}
        for name in has.keys() & {"S", "V"}:
            has[name] &= data.pbc.any(1)
        return [metric for metric in self._shown if metric[0] in has and has[metric[0]].any()]

    def open_table(self, after: int) -> None:
        """Begins the table, or continues one after the step `after`: later lines are dropped."""
        columns = [f"{m.replace(':', '_')}({_UNITS[m[0]]})" for m in self._shown]
        lines = [
            "# " + " ".join(text.ljust(18) for text in ["step", *columns]).rstrip(),
            "# energies and virials are per atom, F is by component, S is the stress, -virial / volume",
        ]
        if after and self.table.is_file():
            written = self.table.read_text(encoding="utf-8")
            whole, _, _ = written.rpartition("\n")  # a kill may have cut the last line
            for line in whole.splitlines()[2:]:
                first = line.split(maxsplit=1)[0] if line.strip() else ""
                if first.isdigit() and int(first) > after:
                    break
                lines.append(line)
        self.table.parent.mkdir(parents=True, exist_ok=True)
        self.table.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def is_due(self, step: int) -> bool:
        """Whether there is one after this step."""
        start = self._start
        return start is not None and step >= start and (step - start) % self._interval == 0

    def measure(self, potential: Potential, device: torch.device, processes: Processes) -> dict[str, float]:
        """Each shown metric over all frames of the data, by all processes together; eV and A, NaN without labels."""
        sums = {name: np.zeros(3) for name in _LABELS}  # of |error|, of error^2, of numbers
        data = self.frames.data
        for frames in data.successive(np.arange(len(data))[processes.rank :: processes.count], _BATCH_ATOMS):
            batch = make_batch(data, self.frames.lists, frames).to(device)
            result = predict(potential, batch, create_graph=False)
            for name, error in _errors(label_errors(result, batch), data, frames).items():
                sums[name] += [float(error.abs().sum()), float(error.square().sum()), error.numel()]
        flat = processes.sums([float(value) for three in sums.values() for value in three])
        found = {}
        for k, name in enumerate(_LABELS):
            absolute, square, number = flat[3 * k : 3 * k + 3]
            found[f"{name}:MAE"] = absolute / number if number else math.nan
            found[f"{name}:RMSE"] = math.sqrt(square / number) if number else math.nan
        return {metric: found[metric] for metric in self._shown}

    def take(self, step: int, errors: Mapping[str, float], save: Callable[[Path], None]) -> None:
        """Adds a line to the table; if the metric is among the best, calls `save` with the path without suffix."""
        record = (errors[self.metric], step)
        others = [other for other in self.records if other[1] != step]
        self.records = sorted([*others, record])[: self._kept]
        lines = [
            " ".join(text.ljust(18) for text in [str(step), *map(self._number, errors.items())]).rstrip()
        ]
        if record in self.records and self._saves:
            path = self.best_files.path(step, self.records.index(record) + 1)
            path.parent.mkdir(parents=True, exist_ok=True)
            save(path)
            self.best_files.keep([step for _, step in self.records])
            value = f"{self.metric} = {self._number((self.metric, record[0]))} {_UNITS[self.metric[0]]}"
            lines.append(f"# saved best checkpoint: {path.name} ({value})")
        with self.table.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    @staticmethod
    def _number(item: tuple[str, float]) -> str:
        return f"{_PER_UNIT * item[1]:.5g}"

    def state(self) -> dict[str, Any]:
        """For a restart."""
        return {"metric": self.metric, "records": [list(record) for record in self.records]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes the records of a checkpoint; those of another metric do not count."""
        if state.get("metric") == self.metric:
            records = [(float(error), int(step)) for error, step in state["records"]]
            self.records = sorted(records)[: self._kept]


class BestFiles:
    """Checkpoints and model files `<prefix>-<step>.t-<rank>.pt` and `.safetensors`; rank 1 is the best."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix
        self._pattern = re.compile(re.escape(prefix) + r"-(\d+)\.t-(\d+)(\.pt|\.safetensors)")

    def path(self, step: int, rank: int) -> Path:
        """Without suffix."""
        return self._folder / f"{self._prefix}-{step}.t-{rank}"

    def found(self) -> list[Path]:
        """All in the folder."""
        if not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.iterdir() if self._pattern.fullmatch(path.name))

    def keep(self, steps: list[int]) -> None:
        """Renames the files of these steps, best first, to their ranks, and removes all others."""
        for path in self.found():
            match = self._pattern.fullmatch(path.name)
            assert match is not None
            step = int(match[1])
            if step not in steps:
                path.unlink()
                continue
            kept = self.path(step, steps.index(step) + 1)
            # No with_suffix: names have dots.
            path.rename(kept.with_name(kept.name + match[3]))


def best_files(config: Config, folder: Path) -> list[BestFiles]:
    """The files of the best weights of full validations, and of the best averages."""
    place = (folder / config.training.save_ckpt).parent
    if config.validating.save_best_dir is not None:
        place = folder / config.validating.save_best_dir
    return [BestFiles(place, prefix) for prefix in ("best.ckpt", "best_ema.ckpt")]


def tables(config: Config, folder: Path) -> list[Path]:
    """The tables of both."""
    table = folder / config.validating.full_val_file
    return [table, table.with_name(f"{table.stem}_ema{table.suffix}")]


def full_validations(config: Config, steps: int, folder: Path, frames: Frames | None) -> list[FullValidation]:
    """Those in the input that are due within so many steps."""
    full, start = config.validating, _first_step(config.validating.full_val_start, steps)
    if frames is None or start is None or start > steps:
        return []
    wanted = [False] * full.full_validation
    wanted += [True] * (full.ema_full_validation and config.training.enable_ema)
    return [FullValidation(config, steps, folder, frames, averaged=averaged) for averaged in wanted]


def _first_step(start: float, steps: int) -> int | None:
    """The step of `full_val_start`, None for never."""
    if start == 1:
        return None
    return int(steps * start) if start < 1 else int(start)


def _errors(errors: Mapping[str, torch.Tensor], data: Dataset, frames: np.ndarray) -> dict[str, torch.Tensor]:
    """The errors of each metric from those of the labels; V and S use only periodic frames."""
    found = {name: errors[_LABELS[name]] for name in "EF" if _LABELS[name] in errors}
    if "virial" in errors:
        labelled = frames[data.present["virial"][frames]]
        periodic = data.pbc[labelled].any(1)
        volume = np.abs(np.linalg.det(data.cell[labelled]))
        virial = errors["virial"]
        found["V"] = virial[torch.from_numpy(periodic).to(virial.device)]
        solid = torch.from_numpy(periodic & (volume > 0)).to(virial.device)
        over = torch.from_numpy(data.counted(labelled) / np.where(volume > 0, volume, 1)).to(virial)
        found["S"] = -(virial * over[:, None])[solid]
    return found
