"""One model in training: its data, its loss, its steps, and their reports. A training has one such branch, or several
whose models share weights."""

import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mdops.data.batch import Batch
from mdops.data.dataset import NothingLeftOutError
from mdops.data.labels import labels_of
from mdops.errors import ConfigError
from mdops.io import remove_unfinished
from mdops.loading import load_charges
from mdops.models.charge_spin import charge_spin_defaults
from mdops.models.contract import masks
from mdops.models.registry import outputs_of
from mdops.models.spin import spin_of
from mdops.potential import Potential
from mdops.train.config.sections import Config
from mdops.train.loop.adapters import Adapters
from mdops.train.loop.charges import require_own_labels, take_off_charges
from mdops.train.loop.cuda_graph import Outcome, step_graphs
from mdops.train.loop.distributed import Processes
from mdops.train.loop.factories import make_loss, only_learned, require_labels, trained_labels
from mdops.train.loop.frames import Frames, Share
from mdops.train.loop.full_validation import full_validations
from mdops.train.loop.kalman import KalmanFilter, filter_step
from mdops.train.loop.schedule import WeightAverage
from mdops.train.loop.update import predict, train_step
from mdops.train.loss import Loss
from mdops.train.loss.base import squared_errors
from mdops.train.model.initial import Pretrained, model_state, new_potential, refit_to, restored
from mdops.train.model.statistics import NeighborCounts, overflow_rule, statistics_frames
from mdops.train.report.learning_curve import LearningCurve, Report
from mdops.train.report.tensorboard import ScalarLog

_NOISE, _GROUPS = 9, 10  # streams of random numbers
InPlace = Callable[[bool], AbstractContextManager[None]]


class Branch:
    """A model that is trained.

    Attributes:
        name: of the branch; "" where there is no other.
        config: its training input. folder: where its files go.
        frames, validation: the data. loss: what is minimised.
        potential: the current model. taken: the number of its steps.
        full_validations: those in the input.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        folder: Path,
        processes: Processes,
        seed: int,
        *,
        state: Mapping[str, Any],
        pretrained: Pretrained | None,
    ) -> None:
        """Reads the data and makes the model; `open` has to follow.

        Args:
            state: of a checkpoint; empty without one.
            pretrained: the model to begin with, without a checkpoint.
        """
        self.name, self.config, self.folder = name, config, folder
        self._processes, self._seed, self._state = processes, seed, state
        self.taken: int = state.get("taken", 0)
        self._modifier = getattr(config.model, "modifier", None)
        earlier = restored(state["model"], config) if state else None
        if earlier is None and pretrained is not None:
            earlier = pretrained.potential
        self._load_data(earlier)
        self.loss: Loss = make_loss(config, self.frames.data, None if earlier is None else earlier.model)
        if self.validation is not None:
            self.loss.complete(self.validation.data)
        require_labels(self.loss, self.frames.data, takes_more=config.optimizer.type != "LKF")
        if self._modifier is not None:
            require_own_labels(self.loss)
        if masks(config.model) and "hessian" in self.loss.terms:
            raise ConfigError(
                "loss.start_pref_h: no Hessians are trained where aparam says which atoms are there"
            )
        self.potential = earlier if earlier is not None and state else self._initial_model(pretrained)
        for frames in filter(None, (self.frames, self.validation)):
            frames.data.require_charges(charge_spin_defaults(self.potential.model))
        self._drop_neighbors(restarted=bool(state))
        self._curve: LearningCurve | None = None
        self._scalars: ScalarLog | None = None

    def _load_data(self, earlier: Potential | None) -> None:
        """The data, with the types of the model to continue, if there is one."""
        model, training = self.config.model, self.config.training
        types, cutoff, outputs = model.type_map, model.cutoff, outputs_of(model)
        silent, spin, masked = model.atom_exclude_types, spin_of(model, types), masks(model)
        if earlier is not None:
            types, cutoff, outputs = earlier.type_map, earlier.cutoff, earlier.model.outputs
            silent, spin = earlier.model.options.atom_exclude_types, earlier.model.spin
            masked = earlier.model.masks
        labels = labels_of(outputs, spin is not None)
        parts = model.type_map, types, cutoff, self._seed, labels, silent, spin, masked
        self.frames = Frames(training.training_data, *parts)
        self.validation: Frames | None = None
        if training.validation_data is not None:
            try:
                self.validation = Frames(training.validation_data, *parts)
            except NothingLeftOutError as error:
                warnings.warn(f"{error}: there is no validation", stacklevel=2)
        if self._modifier is not None:
            for own in filter(None, (self.frames, self.validation)):
                take_off_charges(own.data, self._modifier, model.type_map, self.folder, self._processes)
        largest = self.frames.sampler.largest
        if largest < self._processes.count:
            raise ConfigError(
                f"training.training_data.batch_size: batches have {largest} frames, fewer than the "
                f"{self._processes.count} processes that share them"
            )

    def _initial_model(self, pretrained: Pretrained | None) -> Potential:
        """The model before the first step. As in DeePMD-kit, atomic labels without a term in the loss do not enter.
        The first process makes it, and all get its bits."""
        data, lists = only_learned(self.frames.data, self.loss), self.frames.lists

        def make() -> dict[str, Any]:
            if pretrained is None:
                found = new_potential(self.config, data, lists, self._seed)
            else:
                found = pretrained.adapted(self.config, data, lists)
            frames = statistics_frames(self.config, self.frames.data)
            self.loss.give_statistics(found.model, self.frames.data, frames)
            return model_state(found)

        return restored(self._processes.from_first(make), self.config)

    def _drop_neighbors(self, *, restarted: bool) -> None:
        """Lets the model drop the farthest neighbours if data that it was not made from have more than `sel`: those
        of the validation, and all data of a restart, which may differ."""
        for name, frames in (
            ("training data", self.frames if restarted else None),
            ("validation data", self.validation),
        ):
            if frames is not None and self.potential.overflow == "error":
                counts = NeighborCounts(frames.data, frames.lists)
                rule = partial(overflow_rule, counts, self.potential.neighbors, name)
                self.potential.overflow = self._processes.from_first(rule)

    def begin(
        self,
        optimizer: torch.optim.Optimizer,
        average: WeightAverage,
        in_place: InPlace,
        *,
        step: int,
        steps: int,
        alone: bool,
        adapters: Adapters | None,
    ) -> None:
        """Prepares the steps, and opens the report files.

        Args:
            optimizer, average: of all weights that are trained.
            in_place: a context with the average in place of the weights, or the reverse.
            step, steps: those done, and those of the whole training.
            alone: whether there is no other branch.
            adapters: those of the model's weights.
        """
        training, potential = self.config.training, self.potential
        self._optimizer, self._average, self._in_place = optimizer, average, in_place
        self._adapters, self._steps = adapters, steps
        self.loss.take_statistics(potential.model)
        self._reduce = self._processes.mean_gradients(potential.parameters())
        # Graphs hold gradients in their own memory, which several models cannot share.
        self._graphs = None if not alone or isinstance(optimizer, KalmanFilter) else step_graphs(
            potential,
            self.loss,
            optimizer,
            self.frames.data,
            self.frames.lists,
            average=average if training.enable_ema else None,
            max_norm=training.gradient_max_norm,
            reduce_gradients=self._reduce,
            adapters=adapters,
        )  # fmt: skip
        if self._processes.is_first:
            labels = [self.loss.labels[name] for name in self.loss.terms]
            path = self.folder / training.disp_file
            self._curve = LearningCurve(path, labels, self.validation is not None, step)
        self.full_validations = full_validations(self.config, steps, self.folder, self.validation)
        for full in self.full_validations:
            full.restore(self._state.get("full_validation", {}).get(_weights_name(full.averaged), {}))
            if self._processes.is_first:
                full.open_table(step)
        self._state = {}

    def scalar_log(self, step: int) -> ScalarLog:
        """TensorBoard's file for a run that begins after this step."""
        folder = self.folder / self.config.training.tensorboard_log_dir
        self._scalars = ScalarLog(folder, step, self.loss.labels)
        return self._scalars

    def share(self) -> Share:
        """This process' share of the next batch."""
        return self.frames.share(self.taken, self._processes)

    def step(self, share: Share, rate: float, fraction: float) -> Outcome:
        """Takes a step: the loss, the predictions before it, and the batch."""
        self.taken += 1
        moved = self.loss.displacements(self.frames.data, share.frames, [self._seed, _NOISE, self.taken])
        if self._graphs is not None:
            outcome = self._graphs(share.frames, share.counts, rate, fraction, moved)
            if outcome is not None:
                return outcome
        batch = self.frames.batch(share, self.potential.device)
        if moved is not None:
            batch = batch.displaced(moved.to(self.potential.device))
            batch = replace(batch, neighbors=self.potential.neighbor_list(batch.system))
        if isinstance(self._optimizer, KalmanFilter):
            loss, result = self._filter(share, batch, fraction)
        else:
            loss, result = train_step(
                self.potential,
                self.loss,
                self._optimizer,
                batch,
                rate=rate,
                fraction=fraction,
                max_norm=self.config.training.gradient_max_norm,
                counts=share.counts,
                reduce_gradients=self._reduce,
                adapters=self._adapters,
            )
        if self.config.training.enable_ema:
            self._average.update()
        return loss, result, batch

    def _filter(
        self, share: Share, batch: Batch, fraction: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Takes a step of a Kalman filter: as `train_step`."""
        c, done = self.config.optimizer, (self.taken - 1) / self._steps
        assert isinstance(self._optimizer, KalmanFilter)
        return filter_step(
            self.potential,
            self.loss,
            self._optimizer,
            batch,
            prefactors={
                "energy": c.kf_start_pref_e * (c.kf_limit_pref_e / c.kf_start_pref_e) ** done,
                "forces": c.kf_start_pref_f * (c.kf_limit_pref_f / c.kf_start_pref_f) ** done,
            },
            seed=[self._seed, _GROUPS, self.taken],
            fraction=fraction,
            counts=share.counts,
            is_counted=share.is_counted,
            processes=self._processes,
            reduce_gradients=self._reduce,
            adapters=self._adapters,
        )

    def trained(self, share: Share, outcome: Outcome) -> dict[str, float]:
        """The errors of a step."""
        loss, result, batch = outcome
        return self._errors(float(loss), squared_errors(result, batch, self.loss) if share.is_counted else {})

    def measured(self, frames: Frames, first: int, count: int, fraction: float) -> dict[str, float]:
        """The root of the loss, and RMSEs, over batches `first` to `first + count - 1`."""
        total, loss = dict[str, Any](), 0.0
        for k in range(first, first + count):
            share = frames.share(k, self._processes)
            batch = frames.batch(share, self.potential.device)
            result = predict(self.potential, batch, create_graph=False, loss=self.loss)
            detached = {name: value.detach() for name, value in result.items()}
            loss += float(self.loss(detached, batch, fraction, share.counts)) / count
            errors = squared_errors(result, batch, self.loss) if share.is_counted else {}
            for name, (square, number) in errors.items():
                before = total.get(name, (0.0, 0))
                total[name] = (before[0] + square, before[1] + number)
        return self._errors(loss, total)

    def log(self, step: int, rate: float, trained: Mapping[str, float]) -> None:
        """A point of TensorBoard's curves of the training batch."""
        if self._scalars:
            self._scalars.rate(step, rate)
            self._scalars.errors(step, "training", trained)

    def report(
        self, step: int, rate: float, fraction: float, interval: int, trained: dict[str, float] | None
    ) -> Report:
        """A line of the learning curve, every `interval` steps; without a step's errors, with those of the next
        batch."""
        if trained is None:
            trained = self.measured(self.frames, self.taken, 1, fraction)
        report = Report(step, rate, trained, self._validate(step // interval, fraction), self.name)
        if self._curve is not None:
            self._curve.write(report.step, report.training, report.validation, report.rate)
        if self._scalars and report.validation is not None:
            self._scalars.errors(step, "validation", report.validation)
        return report

    def _validate(self, line: int, fraction: float) -> dict[str, float] | None:
        """RMSEs over the next validation batches, with the averages of the weights if enabled."""
        training = self.config.training
        if self.validation is None or training.validation_data is None:
            return None
        count = min(training.validation_data.numb_btch, self.validation.sampler.batches)
        with self._in_place(training.enable_ema):
            return self.measured(self.validation, line * count, count, fraction)

    def validate_fully(self, step: int, save: Callable[..., None]) -> str | None:
        """Runs the full validations that are due; for one among the best, calls `save` with its path and `averaged`,
        whether it is of the average. Returns what is not finite."""
        for full in self.full_validations:
            if not full.is_due(step):
                continue
            with self._in_place(full.averaged):
                errors = full.measure(self.potential, self.potential.device, self._processes)
            value = errors[full.metric]
            if not math.isfinite(value):
                return f"{full.metric} of the full validation is {value}"
            if self._processes.is_first:
                full.take(step, errors, partial(save, averaged=full.averaged))
        return None

    def change_bias(self) -> None:
        """Shifts the energies of types to fit the labels of the data, by the first process."""

        def make() -> list[torch.Tensor]:
            found = restored(model_state(self.potential), self.config)
            refit_to(found, self.config, only_learned(self.frames.data, self.loss), self.frames.lists)
            return [found.model.out_bias, found.model.out_std]

        own = self.potential.model
        for value, new in zip((own.out_bias, own.out_std), self._processes.from_first(make), strict=True):
            value.copy_(new)

    def _errors(self, loss: float, errors: Mapping[str, tuple[float, int]]) -> dict[str, float]:
        """The root of the loss, and RMSEs, over all processes."""
        (total,) = self._processes.sums([loss])
        sums = self._processes.sum_errors(errors, self.loss.labels)
        rmse = {name: (square / number) ** 0.5 for name, (square, number) in sums.items()}
        mean = total / self._processes.count  # below 0 by negative prefactors, of a rate above start_lr
        return {"loss": mean**0.5 if mean >= 0 else math.nan, **rmse}

    def state(self) -> dict[str, Any]:
        """Its part of a checkpoint."""
        found = {_weights_name(full.averaged): full.state() for full in self.full_validations}
        return {"model": model_state(self.potential), "taken": self.taken, "full_validation": found}

    def flush(self) -> None:
        """Flushes TensorBoard's file to disk."""
        if self._scalars:
            self._scalars.flush()

    def save_model(self, path: Path, averaged: bool, step: int, steps: int) -> None:
        """Writes the model, with its weights or their average, and the progress of its training. Only the last file
        has the data for LAMMPS, which takes seconds."""
        remove_unfinished(path)
        potential, data = self.potential, self.frames.data
        progress = {"step": step, "steps": steps}
        learned = {"frames": len(data), "labels": trained_labels(self.loss, data)}
        potential.source = {**potential.source, "training": {**progress, **learned}}
        if self._modifier is not None:
            potential.source["modifier"] = asdict(self._modifier)
        is_last = step >= steps
        if is_last and self._modifier is not None:  # for the core's part of the file
            potential.modifier = load_charges(potential.source["modifier"], Path())
        try:
            with self._in_place(averaged):
                potential.save(path, core=None if is_last else ())
        finally:
            potential.modifier = None


def _weights_name(averaged: bool) -> str:
    """The name in checkpoints of a full validation's weights."""
    return "average" if averaged else "weights"
