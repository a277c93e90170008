"""The training loop: steps, reports, checkpoints."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mdops._library import check_device
from mdops.errors import ConfigError, DivergedError, InputError
from mdops.flags import require_flags
from mdops.memory import keep_freed_memory
from mdops.models.contract import decayed_of, tables_of
from mdops.potential import Potential
from mdops.train.config.branches import MultiTaskConfig
from mdops.train.config.sections import Config
from mdops.train.loop.adapters import Adapters
from mdops.train.loop.branch import Branch
from mdops.train.loop.checkpoint import checkpoints, load_checkpoint, save_checkpoint
from mdops.train.loop.distributed import Processes
from mdops.train.loop.factories import (
    make_optimizer,
    make_rate,
    planned_steps,
    report_interval,
    restore_optimizer,
)
from mdops.train.loop.folder_lock import one_training
from mdops.train.loop.frames import Frames
from mdops.train.loop.full_validation import FullValidation
from mdops.train.loop.restart import require_unchanged
from mdops.train.loop.schedule import WeightAverage
from mdops.train.loop.update import keep_spline
from mdops.train.loss import Loss
from mdops.train.model.initial import Pretrained, read_pretrained
from mdops.train.model.shared import link, set_cases
from mdops.train.report.learning_curve import Report
from mdops.train.report.tensorboard import require_tensorboard

_KNOTS_EVERY = 1000  # the most steps between two checks of knots, even with rare reports
_CHOICES = 7  # a stream of random numbers: the branch of each step


class Trainer:
    """One training, from a configuration; its files go to `folder`, in which no other may run.

    With `restart` it goes on from the newest checkpoint there, and ends with the bits of a run that was never
    stopped (on the same machine with the same number of threads and processes).

    Where `torch.distributed` is initialised, each process makes a Trainer and calls the same methods: it
    computes its share of each batch, and the first one writes the files.

    A training of several branches (`model_dict`) takes each step of one of them, drawn by its probability, and writes
    the model and the learning curve of each to a folder of its name.

    Attributes:
        branches: the models that are trained, by their names, with data, loss and reports; of one, the name is "".
        steps: in the whole training. step: those done. seed: the one in use.
        odds: the odds of each branch in a step.
        processes: those that share the work.
        adapters: of the model's weights, if the input has some.
    """

    def __init__(
        self,
        config: Config | MultiTaskConfig,
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
            head: which model of a file of several that is (`mdops.load`); "RANDOM": a new fitting on the file's
                descriptor. Unless given, it is the input's `finetune_head`, and of a training of several branches each
                branch has that of its name, or a new fitting if there is none.
            use_pretrain_script: let that model differ from the input's `model`, and take its.
            device: where to compute, "cpu" or "cuda".

        Raises:
            ConfigError: the input does not make sense, or fits neither the checkpoint nor the model.
            DataError: the data cannot be used. InputError: an argument, or a checkpoint, cannot, or another
                training runs in the folder.
            ModelFileError, UnsupportedModelError: the model file cannot. LibraryError: the GPU cannot.
        """
        require_flags(restart=restart, use_pretrain_script=use_pretrain_script)
        path = _only_one(restart, init_model, finetune)
        if head is not None and not isinstance(path, str | os.PathLike):
            raise InputError("head needs a model file, init_model or finetune")
        if use_pretrain_script and path is None and not restart:
            raise InputError("use_pretrain_script needs a model, init_model or finetune")
        self.config, self.folder, self.device = config, Path(folder), check_device(device)
        self.processes = Processes.current()
        if config.training.tensorboard:
            require_tensorboard()

        def pretrained(name: str, own: Config) -> Pretrained | None:
            if path is None:
                if getattr(own.model, "lora", None) is not None:
                    warnings.warn(
                        "model.lora: the adapters are added to random weights, which are not trained: begin with a "
                        "trained model (--finetune or --init-model), or leave the section out",
                        stacklevel=2,
                    )
                return None
            return read_pretrained(
                path,
                own,
                head=head,
                branch=name,
                use_pretrain_script=use_pretrain_script,
                finetune=finetune is not None,
            )

        with one_training(self.folder, self.processes):
            self._prepare(pretrained, restart)

    def _prepare(self, pretrained: Callable[[str, Config], Pretrained | None], restart: bool) -> None:
        """Prepares data, models, optimizer and files for the next step."""
        training, configs = self.config.training, _configs(self.config)
        state: dict[str, Any] = self.processes.from_first(self._newest) if restart else {}
        self.step: int = state.get("step", 0)
        self.seed: int = self.processes.from_first(lambda: state.get("seed", _seed(training.seed)))
        self.branches = {
            name: Branch(
                name,
                own,
                self.folder / name,
                self.processes,
                self.seed,
                state=state["branches"][name] if state else {},
                pretrained=None if state else pretrained(name, own),
            )
            for name, own in configs.items()
        }
        self.steps, self.odds = self._plan()
        self._interval = report_interval(self.config.training, self.steps)
        self.rate = make_rate(next(iter(configs.values())), self.steps)
        if isinstance(self.config, MultiTaskConfig):
            parts = [
                (b.potential, b.frames, b.config, odds) for b, odds in zip(self._all, self.odds, strict=True)
            ]
            link(dict(zip(self.branches, parts, strict=True)), self.config.shared, learn=not state)
            if not state:
                set_cases({name: branch.potential for name, branch in self.branches.items()})
                self._name_heads(self.config)
        for branch in self._all:
            branch.potential = branch.potential.to(self.device)
        self.adapters = self._make_adapters(state)
        weights = list({id(p): p for b in self._all for p in b.potential.parameters()}.values())
        weights = weights if self.adapters is None else self.adapters.trained_of(weights)
        tables = [p for branch in self._all for p in tables_of(branch.potential)]
        decayed = [p for branch in self._all for p in decayed_of(branch.potential)]
        self.optimizer = make_optimizer(
            next(iter(configs.values())), weights, tables, decayed, steps=self.steps
        )
        swapped = None if self.adapters is None else self.adapters.set_weights
        self.average = WeightAverage(weights, training.ema_decay, swapped)
        if state:
            restore_optimizer(self.optimizer, state["optimizer"])
            self.average.updates = state["average"]["updates"]
            torch._foreach_copy_(self.average.values, state["average"]["values"])
        for branch in self._all:
            branch.begin(
                self.optimizer,
                self.average,
                self._in_place,
                step=self.step,
                steps=self.steps,
                alone=len(self.branches) == 1,
                adapters=self.adapters,
            )
        keep_freed_memory()

    def _make_adapters(self, state: Mapping[str, Any]) -> Adapters | None:
        """Those of the input, new or of a checkpoint's state."""
        options = getattr(self._all[0].config.model, "lora", None)
        if options is None:
            return None
        found = Adapters(self.potential.model.adapt(), options, self.seed)
        if state:
            found.restore(state["adapters"])
        return found

    @property
    def _all(self) -> list[Branch]:
        return list(self.branches.values())

    # -- Of the first branch, or the only one

    @property
    def potential(self) -> Potential:
        """The current model."""
        return self._all[0].potential

    @property
    def frames(self) -> Frames:
        """The training data."""
        return self._all[0].frames

    @property
    def validation(self) -> Frames | None:
        """The validation data."""
        return self._all[0].validation

    @property
    def loss(self) -> Loss:
        """The loss function."""
        return self._all[0].loss

    @property
    def full_validations(self) -> list[FullValidation]:
        """Those in the input, of all branches."""
        return [full for branch in self._all for full in branch.full_validations]

    def _plan(self) -> tuple[int, np.ndarray]:
        """The steps of the whole training, and the odds of each branch."""
        steps = [planned_steps(branch.config, branch.frames.sampler.epoch) for branch in self._all]
        if not isinstance(self.config, MultiTaskConfig):
            return steps[0], np.ones(1)
        if self.config.epochs is not None:
            return sum(steps), np.array(steps) / sum(steps)
        given = self.config.odds
        odds = np.array(
            [float(len(b.frames.data.systems)) if given is None else given[b.name] for b in self._all]
        )
        return steps[0], odds / odds.sum()

    def _name_heads(self, config: MultiTaskConfig) -> None:
        for name, branch in self.branches.items():
            branch.potential.source |= {"head": name, "head_aliases": config.aliases[name]}

    def run(
        self,
        on_report: Callable[[Report], None] | None = None,
        on_step: Callable[[int], None] | None = None,
        stops: Callable[[], bool] | None = None,
    ) -> Potential:
        """Trains to the end, and returns the model: with `enable_ema`, of the average of the weights. (Of several
        branches that is the first; `branches` has all.)

        With each checkpoint, model.safetensors is written, too; the last one is what is returned. Full validations
        write the best models that they find. Calls `on_report` at each line of the learning curve, and `on_step` with
        the steps done after each. If `stops`, called after each step, returns True in one of the processes, all of
        them end after a step, with a checkpoint, and `step` is less than `steps`.

        Raises:
            DivergedError: the loss or the weights are not finite. InputError: another training runs in the folder.
        """
        training = self.config.training
        raw = self._in_place(False)  # an earlier run left the average
        is_to_stop = self.processes.agreeing(stops)
        with one_training(self.folder, self.processes), self._scalar_logs(), raw:
            if self.step >= self.steps and self.processes.is_first:
                self._save_models()
            while self.step < self.steps:
                for report in self._advance():
                    if on_report:
                        on_report(report)
                if on_step:
                    on_step(self.step)
                self._validate_fully()
                if self.step == self.steps and training.change_bias_after_training:
                    for branch in self._all:
                        branch.change_bias()
                stopped = is_to_stop()
                if self.step % training.save_freq == 0 or self.step == self.steps or stopped:
                    self.save()
                if stopped:
                    break
            self.processes.wait()
        if training.enable_ema and not self.average.is_in_place:
            self.average.swap()
        return self.potential

    @contextmanager
    def _scalar_logs(self) -> Iterator[None]:
        """TensorBoard's files for a run, if enabled and if this process writes."""
        with ExitStack() as opened:
            if self.config.training.tensorboard and self.processes.is_first:
                for branch in self._all:
                    opened.enter_context(branch.scalar_log(self.step))
            yield

    def _advance(self) -> list[Report]:
        """One step, and what is to report after it."""
        training, now = self.config.training, self.rate(self.step)
        fraction = now / self.rate.start
        branch = self._chosen(self.step)
        share = branch.share()
        outcome = branch.step(share, now, fraction)
        self.step += 1
        is_shown = self._is_due(self._interval)
        if is_shown or self.step % _KNOTS_EVERY == 0:
            for one in self._all:
                keep_spline(one.potential)
        is_logged = training.tensorboard and self._is_due(training.tensorboard_freq)
        if not is_shown and not is_logged:
            return []
        trained = branch.trained(share, outcome)
        if not math.isfinite(trained["loss"]):
            raise self._diverged(f"the loss is {trained['loss']}")
        if is_logged:
            branch.log(self.step, now, trained)
        if not is_shown:
            return []
        return [
            one.report(self.step, now, fraction, self._interval, trained if one is branch else None)
            for one in self._all
        ]

    def _chosen(self, step: int) -> Branch:
        """The branch of a step."""
        if len(self.branches) == 1:
            return self._all[0]
        random = np.random.default_rng([self.seed, _CHOICES, step])
        return self._all[int(random.choice(len(self.odds), p=self.odds))]

    def _is_due(self, interval: int) -> bool:
        return self.step in (1, self.steps) or self.step % interval == 0

    def _validate_fully(self) -> None:
        """Runs the full validations that are due; saves their best models."""
        for branch in self._all:

            def save(path: Path, averaged: bool, branch: Branch = branch) -> None:
                """Writes a checkpoint and a model file, of the weights or of their average; the path has no suffix."""
                save_checkpoint(path.with_name(path.name + ".pt"), self._state())
                model = path.with_name(path.name + ".safetensors")
                branch.save_model(model, averaged, self.step, self.steps)

            problem = branch.validate_fully(self.step, save)
            if problem:
                raise self._diverged(problem)

    @contextmanager
    def _in_place(self, averaged: bool) -> Iterator[None]:
        """In this context, the model has its weights, or their average, whichever it had before."""
        swaps = averaged != self.average.is_in_place
        if swaps:
            self.average.swap()
        try:
            yield
        finally:
            if swaps:
                self.average.swap()

    def save(self) -> None:
        """Writes a checkpoint and model.safetensors, then removes the oldest of more than `max_ckpt_keep`."""
        # In every process, before one writes: a checkpoint of broken weights would push out good ones.
        if not all(bool(p.isfinite().all()) for b in self._all for p in b.potential.parameters()):
            raise self._diverged("weights are not finite")
        if not self.processes.is_first:
            return
        for branch in self._all:
            branch.flush()
        training = self.config.training
        with self._in_place(False):
            save_checkpoint(self.folder / f"{training.save_ckpt}-{self.step}.pt", self._state())
        self._save_models()
        for path in checkpoints(self.folder, training.save_ckpt)[: -training.max_ckpt_keep]:
            path.unlink()

    def _save_models(self) -> None:
        for branch in self._all:
            path = branch.folder / "model.safetensors"
            branch.save_model(path, self.config.training.enable_ema, self.step, self.steps)

    def _state(self) -> dict[str, Any]:
        """The checkpoint's state."""
        return {
            "step": self.step,
            "seed": self.seed,
            "config": asdict(self.config),
            "branches": {name: branch.state() for name, branch in self.branches.items()},
            "optimizer": self.optimizer.state_dict(),
            "adapters": {} if self.adapters is None else self.adapters.state(),
            "average": {"updates": self.average.updates, "values": self.average.values},
        }

    def _diverged(self, what: str) -> DivergedError:
        """The error to raise, with advice."""
        found = checkpoints(self.folder, self.config.training.save_ckpt)
        last = (
            f"; {found[-1]} is the last good one: continue from it with --restart"
            if found
            else "; begin again"
        )
        return DivergedError(
            f"the training diverged up to step {self.step}: {what}{last}, with a lower learning_rate.start_lr or "
            "with training.gradient_max_norm, or look for wrong labels in the data"
        )

    def _newest(self) -> dict[str, Any]:
        """The last checkpoint's state."""
        found = checkpoints(self.folder, self.config.training.save_ckpt)
        if not found:
            raise ConfigError(f"{self.folder}: has no checkpoint {self.config.training.save_ckpt}-<step>.pt")
        state = _with_branches(load_checkpoint(found[-1]))
        require_unchanged(state["config"], self.config, str(found[-1]))
        return state


def _configs(config: Config | MultiTaskConfig) -> dict[str, Config]:
    """That of each branch."""
    return config.branches if isinstance(config, MultiTaskConfig) else {"": config}


def _with_branches(state: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's state, updated: earlier versions had one model without a name."""
    if "branches" in state:
        return dict(state)
    own = {
        "model": state["model"],
        "taken": state["step"],
        "full_validation": state.get("full_validation", {}),
    }
    return {**state, "branches": {"": own}}


def _only_one(
    restart: bool,
    init_model: str | os.PathLike[str] | Potential | None,
    finetune: str | os.PathLike[str] | None,
) -> str | os.PathLike[str] | Potential | None:
    """The model to begin with; there may be only one."""
    if restart + (init_model is not None) + (finetune is not None) > 1:
        raise InputError("restart, init_model and finetune cannot be combined")
    return finetune if init_model is None else init_model


def _seed(seed: int | None) -> int:
    return int.from_bytes(os.urandom(4), "little") if seed is None else seed
