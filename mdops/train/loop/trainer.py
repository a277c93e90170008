"""The training loop: steps, reports, checkpoints."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mdops._library import check_device
from mdops.data.dataset import NothingLeftOutError
from mdops.data.labels import labels_of
from mdops.errors import ConfigError, DivergedError, InputError
from mdops.io import remove_unfinished
from mdops.memory import keep_freed_memory
from mdops.models.contract import tables_of
from mdops.models.registry import outputs_of
from mdops.potential import Potential
from mdops.train.config.sections import Config
from mdops.train.loop.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from mdops.train.loop.cuda_graph import Outcome, step_graphs
from mdops.train.loop.distributed import Processes
from mdops.train.loop.factories import (
    make_loss,
    make_optimizer,
    make_rate,
    planned_steps,
    report_interval,
    require_labels,
    restore_optimizer,
    trained_labels,
)
from mdops.train.loop.folder_lock import one_training
from mdops.train.loop.frames import Frames, Share
from mdops.train.loop.full_validation import full_validations
from mdops.train.loop.restart import require_unchanged
from mdops.train.loop.schedule import WeightAverage
from mdops.train.loop.update import keep_spline, predict, train_step
from mdops.train.loss import Loss
from mdops.train.loss.base import squared_errors
from mdops.train.model.initial import adapt, model_state, new_potential, read_pretrained, restored
from mdops.train.report.learning_curve import LearningCurve, Report
from mdops.train.report.tensorboard import ScalarLog, require_tensorboard

_KNOTS_EVERY = 1000  # steps, at most, after which knots are looked at, however seldom there are reports


class Trainer:
    """One training, from a configuration; its files go to `folder`, in which no other may run.

    With `restart` it goes on from the newest checkpoint there, and ends with the bits of a run that was never
    stopped (on the same machine with the same number of threads and processes).

    Where `torch.distributed` is initialised, each process makes a Trainer and calls the same methods: it
    computes its share of each batch, and the first one writes the files.

    Attributes:
        potential: the model of now. steps: in the whole training. step: those done. seed: the one in use.
        processes: those that share the work. full_validations: those that the input asks for.
    """

    def __init__(
        self,
        config: Config,
        folder: str | os.PathLike[str] = ".",
        *,
        restart: bool = False,
        init_model: str | os.PathLike[str] | Potential | None = None,
        finetune: str | os.PathLike[str] | None = None,
        head: str | None = None,
        use_pretrain_script: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        """
        Args:
            config: the training input.
            folder: where files go.
            restart: see above.
            init_model: a model file, or a model, to take weights and statistics from, for a training from step 0.
            finetune: the same, with the energies of the types fitted anew to the data; a model whose weights serve all
                types becomes one of the input's types.
            head: which model of a file of several that is (`mdops.load`).
            use_pretrain_script: let that model differ from the input's `model`, and take its.
            device: where to compute, "cpu" or "cuda".

        Raises:
            ConfigError: the input does not make sense, or fits neither the checkpoint nor the model.
            DataError: the data cannot be used. InputError: an argument, or a checkpoint, cannot, or another
                training runs in the folder.
            ModelFileError, UnsupportedModelError: the model file cannot. LibraryError: the GPU cannot.
        """
        path = _only_one(restart, init_model, finetune)
        if head is not None and not isinstance(path, str | os.PathLike):
            raise InputError("head needs a model file, init_model or finetune")
        if use_pretrain_script and path is None and not restart:
            raise InputError("use_pretrain_script needs a model, init_model or finetune")
        self.config, self.folder, self.device = config, Path(folder), check_device(device)
        self.processes = Processes.current()
        if config.training.tensorboard:
            require_tensorboard()
        with one_training(self.folder, self.processes):
            self._prepare(path, head, restart, finetune is not None, use_pretrain_script)

    def _prepare(
        self,
        path: str | os.PathLike[str] | Potential | None,
        head: str | None,
        restart: bool,
        refit: bool,
        use_pretrain_script: bool,
    ) -> None:
        """Data, model, optimizer and files, as they are before the next step."""
        config, training = self.config, self.config.training
        state: dict[str, Any] = self.processes.from_first(self._newest) if restart else {}
        self.step: int = state.get("step", 0)
        self.seed: int = self.processes.from_first(lambda: state.get("seed", _seed(training.seed)))
        earlier: Potential | None = None
        if state:
            earlier = restored(state["model"], config)
        elif path is not None:
            earlier = read_pretrained(
                path, config, head=head, use_pretrain_script=use_pretrain_script, finetune=refit
            )
        self._load_data(earlier)
        model = None if earlier is None else earlier.model
        self.loss: Loss = make_loss(config, self.frames.data, model)
        require_labels(self.loss, self.frames.data)
        self.steps = planned_steps(config, self.frames.sampler.batches)
        self._interval = report_interval(config, self.steps)
        self.rate = make_rate(config, self.steps)
        if earlier is None or not state:
            earlier = self._initial_model(earlier, refit)
        self.potential = earlier.to(self.device)
        self.loss.take_statistics(self.potential.model)
        self.optimizer = make_optimizer(config, self.potential.parameters(), tables_of(self.potential))
        self.average = WeightAverage(self.potential.parameters(), training.ema_decay)
        if state:
            restore_optimizer(self.optimizer, state["optimizer"])
            self.average.updates = state["average"]["updates"]
            torch._foreach_copy_(self.average.values, state["average"]["values"])
        self._reduce = self.processes.mean_gradients(self.potential.parameters())
        self._graphs = step_graphs(
            self.potential,
            self.loss,
            self.optimizer,
            self.frames.data,
            self.frames.lists,
            average=self.average if training.enable_ema else None,
            max_norm=training.gradient_max_norm,
            reduce_gradients=self._reduce,
        )
        keep_freed_memory()
        self._curve: LearningCurve | None = None
        if self.processes.is_first:
            self._curve = LearningCurve(
                self.folder / training.disp_file,
                [self.loss.labels[name] for name in self.loss.terms],
                self.validation is not None,
                self.step,
            )
        self._scalars: ScalarLog | None = None
        self.full_validations = full_validations(config, self.steps, self.folder, self.validation)
        for full in self.full_validations:
            full.restore(state.get("full_validation", {}).get(_weights_name(full.averaged), {}))
            if self.processes.is_first:
                full.open_table(self.step)

    def _load_data(self, earlier: Potential | None) -> None:
        """The data, with the types of the model to go on with, if there is one."""
        model, training = self.config.model, self.config.training
        types, cutoff, outputs = model.type_map, model.cutoff, outputs_of(model)
        silent = model.atom_exclude_types
        if earlier is not None:
            types, cutoff, outputs = earlier.type_map, earlier.cutoff, earlier.model.outputs
            silent = earlier.model.options.atom_exclude_types
        parts = model.type_map, types, cutoff, self.seed, labels_of(outputs), silent
        self.frames = Frames(training.training_data, *parts)
        self.validation: Frames | None = None
        if training.validation_data is not None:
            try:
                self.validation = Frames(training.validation_data, *parts)
            except NothingLeftOutError as error:
                warnings.warn(f"{error}: there is no validation", stacklevel=2)
        largest = self.frames.sampler.largest
        if largest < self.processes.count:
            raise ConfigError(
                f"training.training_data.batch_size: batches have {largest} frames, fewer than the "
                f"{self.processes.count} processes that share them"
            )

    def _initial_model(self, pretrained: Potential | None, refit: bool) -> Potential:
        """The model before the first step. The first process makes it, and all have its bits."""
        data, lists = self.frames.data, self.frames.lists

        def make() -> dict[str, Any]:
            if pretrained is None:
                return model_state(new_potential(self.config, data, lists, self.seed))
            return model_state(adapt(pretrained, self.config, data, lists, refit=refit))

        return restored(self.processes.from_first(make), self.config)

    def run(
        self,
        on_report: Callable[[Report], None] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> Potential:
        """Trains to the end, and returns the model: with `enable_ema`, of the average of the weights.

        With each checkpoint, model.safetensors is written, too; the last one is what is returned. Full validations
        write the best models that they find. Calls `on_report` at each line of the learning curve, and `on_step` with
        the steps done after each.

        Raises:
            DivergedError: the loss or the weights are not finite. InputError: another training runs in the folder.
        """
        training = self.config.training
        raw = self._in_place(averaged=False)  # an earlier run left the average there
        with one_training(self.folder, self.processes), self._scalar_log(), raw:
            if self.step >= self.steps and self.processes.is_first:
                self._save_model(self.folder / "model.safetensors", training.enable_ema)
            while self.step < self.steps:
                report = self._advance()
                if report and on_report:
                    on_report(report)
                if on_step:
                    on_step(self.step)
                self._validate_fully()
                if self.step % training.save_freq == 0 or self.step == self.steps:
                    self.save()
            self.processes.wait()
        if training.enable_ema and not self.average.is_in_place:
            self.average.swap()
        return self.potential

    def _scalar_log(self) -> Any:
        """TensorBoard's file for a run, if it is wanted and this process writes."""
        training = self.config.training
        if not training.tensorboard or not self.processes.is_first:
            return nullcontext()
        self._scalars = ScalarLog(self.folder / training.tensorboard_log_dir, self.step, self.loss.labels)
        return self._scalars

    def _advance(self) -> Report | None:
        """One step, and what is to report after it."""
        training, now = self.config.training, self.rate(self.step)
        fraction = now / self.rate.start
        share = self.frames.share(self.step, self.processes)
        loss, result, batch = self._step(share, now, fraction)
        self.step += 1
        is_shown = self._is_due(self._interval)
        if is_shown or self.step % _KNOTS_EVERY == 0:
            keep_spline(self.potential)
        if not is_shown and not (training.tensorboard and self._is_due(training.tensorboard_freq)):
            return None
        errors = squared_errors(result, batch) if share.is_counted else {}
        trained = self._errors(float(loss), errors)
        if not math.isfinite(trained["loss"]):
            raise self._diverged(f"the loss is {trained['loss']}")
        if self._scalars and self._is_due(training.tensorboard_freq):
            self._scalars.rate(self.step, now)
            self._scalars.errors(self.step, "training", trained)
        return self._report(now, fraction, trained) if is_shown else None

    def _step(self, share: Share, rate: float, fraction: float) -> Outcome:
        """Takes a step: the loss, the predictions before it, and the batch."""
        if self._graphs is not None:
            outcome = self._graphs(share.frames, share.counts, rate, fraction)
            if outcome is not None:
                return outcome
        batch = self.frames.batch(share, self.device)
        loss, result = train_step(
            self.potential,
            self.loss,
            self.optimizer,
            batch,
            rate=rate,
            fraction=fraction,
            max_norm=self.config.training.gradient_max_norm,
            counts=share.counts,
            reduce_gradients=self._reduce,
        )
        if self.config.training.enable_ema:
            self.average.update()
        return loss, result, batch

    def _is_due(self, interval: int) -> bool:
        return self.step in (1, self.steps) or self.step % interval == 0

    def _report(self, rate: float, fraction: float, trained: dict[str, float]) -> Report:
        """A line of the learning curve."""
        report = Report(self.step, rate, trained, self._validate(fraction))
        if self._curve is not None:
            self._curve.write(report.step, report.training, report.validation, report.rate)
        if self._scalars and report.validation is not None:
            self._scalars.errors(self.step, "validation", report.validation)
        return report

    def _validate(self, fraction: float) -> dict[str, float] | None:
        """RMSEs over the next validation batches, with the averages of the weights if these are wanted."""
        if self.validation is None or self.config.training.validation_data is None:
            return None
        count, total, loss = self.config.training.validation_data.numb_btch, dict[str, Any](), 0.0
        first = self.step // self._interval * count
        with self._in_place(averaged=self.config.training.enable_ema):
            for k in range(first, first + count):
                share = self.validation.share(k, self.processes)
                batch = self.validation.batch(share, self.device)
                result = predict(self.potential, batch, create_graph=False)
                detached = {name: value.detach() for name, value in result.items()}
                loss += float(self.loss(detached, batch, fraction, share.counts)) / count
                errors = squared_errors(result, batch) if share.is_counted else {}
                for name, (square, number) in errors.items():
                    before = total.get(name, (0.0, 0))
                    total[name] = (before[0] + square, before[1] + number)
        return self._errors(loss, total)

    def _validate_fully(self) -> None:
        """The validations over all data that are due, and their best models."""
        for full in self.full_validations:
            if not full.is_due(self.step):
                continue
            with self._in_place(averaged=full.averaged):
                errors = full.measure(self.potential, self.device, self.processes)
            value = errors[full.metric]
            if not math.isfinite(value):
                raise self._diverged(f"{full.metric} of the full validation is {value}")
            if self.processes.is_first:
                full.take(self.step, errors, partial(self._save_best, averaged=full.averaged))

    @contextmanager
    def _in_place(self, *, averaged: bool) -> Iterator[None]:
        """While this lasts, the model has its weights, or their average, whichever it had before."""
        swaps = averaged != self.average.is_in_place
        if swaps:
            self.average.swap()
        try:
            yield
        finally:
            if swaps:
                self.average.swap()

    def _errors(self, loss: float, errors: Mapping[str, tuple[float, int]]) -> dict[str, float]:
        """The root of the loss, and RMSEs, over all processes."""
        (total,) = self.processes.sums([loss])
        sums = self.processes.sum_errors(errors, self.loss.labels)
        rmse = {name: (square / max(number, 1)) ** 0.5 for name, (square, number) in sums.items()}
        return {"loss": (total / self.processes.count) ** 0.5, **rmse}

    def save(self) -> None:
        """Writes a checkpoint and model.safetensors, then removes the oldest of more than `max_ckpt_keep`."""
        # In every process, before one writes: a checkpoint of lost weights would push out the good ones.
        if not all(bool(p.isfinite().all()) for p in self.potential.parameters()):
            raise self._diverged("weights are not finite")
        if not self.processes.is_first:
            return
        if self._scalars:
            self._scalars.flush()
        training = self.config.training
        with self._in_place(averaged=False):
            save_checkpoint(self.folder / f"{training.save_ckpt}-{self.step}.pt", self._state())
        self._save_model(self.folder / "model.safetensors", training.enable_ema)
        for path in checkpoints(self.folder, training.save_ckpt)[: -training.max_ckpt_keep]:
            path.unlink()

    def _state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {
            "step": self.step,
            "seed": self.seed,
            "config": asdict(self.config),
            "model": model_state(self.potential),
            "optimizer": self.optimizer.state_dict(),
            "average": {"updates": self.average.updates, "values": self.average.values},
            "full_validation": {_weights_name(full.averaged): full.state() for full in self.full_validations},
        }

    def _save_best(self, path: Path, averaged: bool) -> None:
        """Writes a checkpoint and a model file, of the weights or of their average; the path has no suffix."""
        save_checkpoint(path.with_name(path.name + ".pt"), self._state())
        self._save_model(path.with_name(path.name + ".safetensors"), averaged)

    def _save_model(self, path: Path, averaged: bool) -> None:
        """Writes the model, or that of the average of the weights, with how far its training has come. What LAMMPS
        computes with is in the last one alone: it takes seconds."""
        remove_unfinished(path)
        potential = self.potential
        data = self.frames.data
        progress = {"step": self.step, "steps": self.steps}
        learned = {"frames": len(data), "labels": trained_labels(self.loss, data)}
        potential.source = {**potential.source, "training": {**progress, **learned}}
        with self._in_place(averaged=averaged):
            potential.save(path, core=None if self.step >= self.steps else ())

    def _diverged(self, what: str) -> DivergedError:
        """What to raise, with what to do."""
        found = checkpoints(self.folder, self.config.training.save_ckpt)
        last = f"; {found[-1]} is from before: go on with it by --restart" if found else "; begin again"
        return DivergedError(
            f"the training diverged up to step {self.step}: {what}{last}, with a lower learning_rate.start_lr or "
            "with training.gradient_max_norm, or look for wrong labels in the data"
        )

    def _newest(self) -> dict[str, Any]:
        """The last checkpoint's state."""
        found = checkpoints(self.folder, self.config.training.save_ckpt)
        if not found:
            raise ConfigError(f"{self.folder}: has no checkpoint {self.config.training.save_ckpt}-<step>.pt")
        state = load_checkpoint(found[-1])
        require_unchanged(state["config"], self.config, str(found[-1]))
        return state


def _only_one(
    restart: bool,
    init_model: str | os.PathLike[str] | Potential | None,
    finetune: str | os.PathLike[str] | None,
) -> str | os.PathLike[str] | Potential | None:
    """The model to begin with; a training has one beginning."""
    if restart + (init_model is not None) + (finetune is not None) > 1:
        raise InputError("restart, init_model and finetune exclude each other")
    return finetune if init_model is None else init_model


def _seed(seed: int | None) -> int:
    return int.from_bytes(os.urandom(4), "little") if seed is None else seed


def _weights_name(averaged: bool) -> str:
    """What checkpoints call the weights that a full validation is of."""
    return "average" if averaged else "weights"
