"""The training loop: steps, reports, checkpoints."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mdops.errors import ConfigError
from mdops.nn.build import build, serialize
from mdops.nn.potential import Potential
from mdops.nn.spline import SplineGrid
from mdops.train.batch import make_batch
from mdops.train.checkpoint import arrays, checkpoints, load_checkpoint, save_checkpoint
from mdops.train.config import Config, DataConfig
from mdops.train.create import create_potential, set_trained
from mdops.train.data import Dataset, load_dataset
from mdops.train.lcurve import LearningCurve
from mdops.train.lists import PairLists
from mdops.train.loss import EnergyLoss, squared_errors
from mdops.train.model_statistics import model_statistics
from mdops.train.schedule import WeightAverage
from mdops.train.setup import make_loss, make_optimizer, make_rate, make_sampler, require_labels
from mdops.train.step import keep_spline, predict, train_step, use_training_spline

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Report:
    """What is known at a line of the learning curve.

    Attributes:
        step: steps done. rate: the learning rate of the last.
        training: "loss" (its root) and RMSEs of the last batch before its step: eV/atom, eV/A.
        validation: the same of the validation batches after it, None without any.
    """

    step: int
    rate: float
    training: dict[str, float]
    validation: dict[str, float] | None


class Frames:
    """Data with its lists and its sampler."""

    def __init__(self, config: DataConfig, model_types: list[str], cutoff: float, seed: int) -> None:
        self.data: Dataset = load_dataset(config.systems, model_types)
        self.lists = PairLists(self.data, cutoff)
        self.sampler = make_sampler(config, self.data, seed)


class Trainer:
    """One training, from a configuration; its files go to `folder`.

    With `restart` it goes on from the newest checkpoint there, and ends with the bits of a run that was never
    stopped (on the same machine with the same number of threads).

    Attributes:
        potential: the model of now. steps: in the whole training. step: those done. seed: the one in use.
    """

    def __init__(
        self, config: Config, folder: str | os.PathLike[str] = ".", *, restart: bool = False
    ) -> None:
        self.config, self.folder = config, Path(folder)
        state = self._newest() if restart else {}
        training = config.training
        self.seed: int = state.get("seed", training.seed if training.seed is not None else _new_seed())
        types, cutoff = config.model.type_map, config.model.descriptor.rcut
        self.frames = Frames(training.training_data, types, cutoff, self.seed)
        self.validation: Frames | None = None
        if training.validation_data is not None:
            self.validation = Frames(training.validation_data, types, cutoff, self.seed)
        self.loss: EnergyLoss = make_loss(config)
        require_labels(self.loss, self.frames.data)
        self.steps = training.numb_steps or math.ceil(
            (training.numb_epoch or 0) * self.frames.sampler.batches
        )
        self.rate = make_rate(config, self.steps)
        self.potential = self._restored(state) if state else self._new()
        self.optimizer = make_optimizer(config, self.potential.parameters())
        self.average = WeightAverage(self.potential.parameters(), training.ema_decay)
        self.step: int = state.get("step", 0)
        if state:
            self.optimizer.load_state_dict(state["optimizer"])
            self.average.updates = state["average"]["updates"]
            torch._foreach_copy_(self.average.values, state["average"]["values"])
        self._curve = LearningCurve(
            self.folder / training.disp_file, self.loss.terms, self.validation is not None, self.step
        )

    def run(
        self,
        on_report: Callable[[Report], None] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Potential:
        """Trains to the end, and writes model.safetensors: the average of the weights with `enable_ema`.

        Calls `on_report` at each line of the learning curve, and `on_step` with the steps done after each.
        """
        training = self.config.training
        while self.step < self.steps:
            report = self._advance()
            if report and on_report:
                on_report(report)
            if on_step:
                on_step(self.step)
            if self.step % training.save_freq == 0 or self.step == self.steps:
                self.save()
        if training.enable_ema:
            self.average.swap()
        self.potential.save(self.folder / "model.safetensors")
        return self.potential

    def _advance(self) -> Report | None:
        """One step, and what is to report after it."""
        training, now = self.config.training, self.rate(self.step)
        fraction = now / self.rate.start
        batch = make_batch(self.frames.data, self.frames.lists, self.frames.sampler(self.step))
        loss, result = train_step(
            self.potential,
            self.loss,
            self.optimizer,
            batch,
            rate=now,
            fraction=fraction,
            max_norm=training.gradient_max_norm,
        )
        self.step += 1
        if training.enable_ema:
            self.average.update()
        if self.step != 1 and self.step % training.disp_freq:
            return None
        keep_spline(self.potential)
        errors = _root_mean(squared_errors(result, batch))
        report = Report(self.step, now, {"loss": float(loss) ** 0.5, **errors}, self._validate(fraction))
        self._curve.write(report.step, report.training, report.validation, report.rate)
        return report

    def _validate(self, fraction: float) -> dict[str, float] | None:
        """RMSEs over the next validation batches, with the averages of the weights if these are wanted."""
        if self.validation is None or self.config.training.validation_data is None:
            return None
        count, total, loss = self.config.training.validation_data.numb_btch, dict[str, Any](), 0.0
        if self.config.training.enable_ema:
            self.average.swap()
        first = self.step // self.config.training.disp_freq * count
        for k in range(first, first + count):
            batch = make_batch(self.validation.data, self.validation.lists, self.validation.sampler(k))
            result = predict(self.potential, batch, create_graph=False)
            loss += float(self.loss({n: v.detach() for n, v in result.items()}, batch, fraction)) / count
            for name, (square, number) in squared_errors(result, batch).items():
                before = total.get(name, (0.0, 0))
                total[name] = (before[0] + square, before[1] + number)
        if self.config.training.enable_ema:
            self.average.swap()
        return {"loss": loss**0.5, **_root_mean(total)}

    def save(self) -> None:
        """Writes a checkpoint, then removes the oldest of more than `max_ckpt_keep`."""
        training, grid = self.config.training, self.potential.grid
        state = {
            "step": self.step,
            "seed": self.seed,
            "model": serialize(self.potential),
            "weights": self.potential.state_dict(),
            "overflow": self.potential.overflow,
            "grid": None if grid is None else asdict(grid),
            "optimizer": self.optimizer.state_dict(),
            "average": {"updates": self.average.updates, "values": self.average.values},
        }
        save_checkpoint(self.folder / f"{training.save_ckpt}-{self.step}.pt", state)
        for path in checkpoints(self.folder, training.save_ckpt)[: -training.max_ckpt_keep]:
            path.unlink()

    def _newest(self) -> dict[str, Any]:
        found = checkpoints(self.folder, self.config.training.save_ckpt)
        if not found:
            raise ConfigError(f"{self.folder}: has no checkpoint {self.config.training.save_ckpt}-<step>.pt")
        return load_checkpoint(found[-1])

    def _new(self) -> Potential:
        statistics = model_statistics(self.config, self.frames.data, self.frames.lists)
        dtype = _DTYPES[self.config.training.precision]
        potential = create_potential(self.config, statistics, seed=self.seed, dtype=dtype)
        if self.config.training.spline:
            use_training_spline(potential, statistics.neighbors.nearest)
        return potential

    def _restored(self, state: Mapping[str, Any]) -> Potential:
        dtype = _DTYPES[self.config.training.precision]
        potential = build(arrays(state["model"]), dtype=dtype, overflow=state["overflow"])
        # The tree has the precision that the model is saved in, the weights that of the computation.
        potential.load_state_dict(state["weights"])
        potential.grid = None if state["grid"] is None else SplineGrid(**state["grid"])
        set_trained(potential, self.config.model)
        return potential.train()


def _root_mean(errors: Mapping[str, tuple[float, int]]) -> dict[str, float]:
    return {name: (square / max(number, 1)) ** 0.5 for name, (square, number) in errors.items()}


def _new_seed() -> int:
    return int.from_bytes(os.urandom(4), "little")
