"""Trains a model from an input file, DeePMD-kit's input.json for one model or for several that share weights; or from
data alone, with mdops' own recipe, which keeps every tenth frame for validation. Writes the learning curve, checkpoints
and model.safetensors. If it is killed, the same command with --restart continues. Several processes share the work with
`torchrun --nproc-per-node N -m mdops train ...`."""

import argparse
import json
import os
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdops.cli.arguments import add_head, require_kind
from mdops.cli.test import label_names
from mdops.errors import InputError
from mdops.options import YAML

if TYPE_CHECKING:
    import torch

    from mdops.train import Trainer
    from mdops.train.config.branches import MultiTaskConfig
    from mdops.train.config.sections import Config
    from mdops.train.loop.branch import Branch

HELP = "train a model"
_OWN = (
    "If the sections model.descriptor, model.fitting_net and learning_rate (with it optimizer) are left out, mdops'\n"
    "own recipe is used (training.md); in a section that is given, keys have DeePMD-kit's defaults.\n"
)
_MOST_THREADS = 1024
_PATIENCE = 10.0  # s without a word
_INPUT = "input.json"  # written by a training from data alone
_KEYS = {  # the keys of an input that correspond to the options of such a training
    "elements": "model.type_map",
    "cutoff": "model.descriptor.rcut",
    "steps": "training.numb_steps",
    "validation": "training.validation_data.systems",
    "names": "training.training_data.names",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", nargs="*", metavar="INPUT", help="the training input, JSON or YAML (--keys lists its keys); or data: "
        "systems of DeePMD-kit, folders of them, and files that ASE reads")  # fmt: skip
    add("--keys", action="store_true", help="list every key of INPUT, with type, unit, default and meaning")
    add("--output", "-o", type=Path, default=Path("."), metavar="FOLDER", help="folder of the files")
    of_data = parser.add_argument_group("of a training by data alone, which writes input.json").add_argument
    of_data("--elements", nargs="+", metavar="ELEMENT", help="the model's types; default: those of the data")
    of_data("--cutoff", type=float, metavar="A", help="default: 6")
    of_data("--steps", type=int, metavar="N", help="default: 20 epochs, but 4,000 to 100,000 steps")
    of_data(
        "--validation",
        nargs="+",
        metavar="SYSTEM",
        help="validation data; default: every tenth frame",
    )
    of_data("--names", nargs="+", default=[], metavar="LABEL=NAME",
            help="names of energy, forces, virial, stress, fparam or aparam in files that ASE reads")  # fmt: skip
    add("--restart", action="store_true", help="continue from the newest checkpoint; start if there is none")
    add("--overwrite", action="store_true", help="start again and replace files of an earlier training")
    pretrained = parser.add_mutually_exclusive_group().add_argument
    text = "start with the weights and statistics of a model file"
    pretrained("--init-model", type=Path, metavar="MODEL", help=text)
    text = "the same, but with the types of the input, whose energies are fitted again to the data"
    pretrained("--finetune", type=Path, metavar="MODEL", help=text)
    add_head(parser)
    add("--use-pretrain-script", action="store_true", help="use the model's options, not the input's")
    add("--device", default="cpu", help="cpu or cuda; with several processes, each uses its own GPU")
    add("--threads", type=int, metavar="N", help="processor threads; default: PyTorch's choice")


def _errors(trainer: "Trainer") -> list[str]:
    """The errors of the saved models on all data."""
    from mdops.data.evaluation import evaluate
    from mdops.loading import load
    from mdops.train.report.progress import describe

    lines = []
    for branch in trainer.branches.values():
        path = branch.folder / "model.safetensors"
        model = load(
            path,
            device=trainer.device,
            dtype=trainer.config.training.precision,
            overflow=branch.potential.overflow,
            allow_low_bit=True,
            modifier=False,  # the labels lack its part
        )
        lines.append(f"errors (RMSE) of {path}, step {trainer.step}:")
        for name, frames in (("training", branch.frames), ("validation", branch.validation)):
            if frames is not None:
                errors = evaluate(model, frames.data, frames.lists).errors()
                found = describe({label: error.rmse for label, error in errors.items()}, frames.data.known)
                lines.append(f"  {name}, {len(frames.data)} frames: {found}")
    return lines


def run(args: argparse.Namespace) -> int:
    if args.keys:
        from mdops.cli.keys import keys_text
        from mdops.train.config.read import keys

        print("\n".join([_OWN, *keys_text(keys())]))
        return 0
    if not args.input:
        raise InputError("give INPUT: a training input, or data (`mdops train --help`)")
    require_kind(args.output, f"--output {args.output}", folder=True)
    import torch

    from mdops.files.atomic import replace_file
    from mdops.stopping import Stopped
    from mdops.train.loop.distributed import Processes, join_processes

    if args.threads is not None:
        most = max(_MOST_THREADS, os.cpu_count() or 1)
        if not 1 <= args.threads <= most:  # with far more, OpenMP ends the process
            raise InputError(f"--threads {args.threads}: expected 1 to {most}")
        torch.set_num_threads(args.threads)
    if args.head is not None and not (args.init_model or args.finetune):
        raise InputError("--head needs a model file: --init-model or --finetune")
    if args.use_pretrain_script and not (args.init_model or args.finetune):
        raise InputError("--use-pretrain-script needs a model: --init-model or --finetune")
    with warnings.catch_warnings():
        if os.environ.get("RANK", "0") != "0":  # all processes read the same input
            warnings.simplefilter("ignore")
        config, written = read_input(args)
    device = join_processes(args.device)
    processes = Processes.current()
    earlier = processes.from_first(lambda: earlier_files(args, config, written))
    trainer = make_trainer(args, config, earlier, device)
    if written and processes.is_first:
        replace_file(args.output / _INPUT, written.encode())
    code = 0
    try:
        train(trainer)
    except Stopped as stopped:
        if processes.count == 1:
            raise
        code = stopped.exit_code
        if processes.is_first:
            print(f"mdops: {stopped}", file=sys.stderr)
    if processes.count > 1:
        # Threads of gloo may still call Python, which aborts a process whose interpreter is ending.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return 0


def read_input(args: argparse.Namespace) -> "tuple[Config | MultiTaskConfig, str | None]":
    """The training input, from a file or made from data. For data, also its text, to be written to the folder."""
    from mdops.data.dataset import elements_of
    from mdops.train import parse_config
    from mdops.train.config import read
    from mdops.train.config.defaults import data_input

    given = [name for name in _KEYS if getattr(args, name)]
    if len(args.input) == 1 and _is_input(Path(args.input[0])):
        if given:
            raise InputError(
                f"--{given[0]} works only for trainings from data: {args.input[0]} is an input; write it "
                f"there, as {_KEYS[given[0]]}"
            )
        return read.read_input(args.input[0]), None
    inputs = [path for path in args.input if _is_input(Path(path))]
    if inputs:
        raise InputError(f"{inputs[0]} is a training input: give one input, or only data")
    tree = data_input(
        args.input,
        args.elements or elements_of([*args.input, *(args.validation or [])]),
        validation=args.validation,
        names=label_names(args.names),
        cutoff=args.cutoff,
        steps=args.steps,
    )
    return parse_config(tree), json.dumps(tree, indent=1) + "\n"


def _is_input(path: Path) -> bool:
    """Whether it is a training input: a JSON file, or a path that ends as those of JSON and YAML do. Else data."""
    if path.suffix in (".json", *YAML):
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(64).lstrip()[:1] in (b"{", b"[")


def make_trainer(
    args: argparse.Namespace, config: "Config | MultiTaskConfig", earlier: list[Path], device: "torch.device"
) -> "Trainer":
    """The training of this command; files of an earlier one are removed."""
    from mdops.train import Trainer
    from mdops.train.loop.distributed import Processes
    from mdops.train.loop.folder_lock import remove_unused

    is_first, is_new = Processes.current().is_first, not args.output.exists()
    args.output.mkdir(parents=True, exist_ok=True)
    start: dict[str, Any] = {"restart": True}
    if not (args.restart and earlier):
        names = ("init_model", "finetune", "head", "use_pretrain_script")
        start = {name: getattr(args, name) for name in names}
        if args.restart and is_first:
            print(f"{args.output} has no checkpoint: a new training begins", file=sys.stderr, flush=True)
    text = "still reading the data and searching their neighbours"
    patience = threading.Timer(_PATIENCE, partial(print, text, file=sys.stderr, flush=True))
    patience.daemon = True
    if is_first:
        patience.start()
    with warnings.catch_warnings():
        if not is_first:  # all processes look at the same data
            warnings.simplefilter("ignore")
        try:
            trainer = Trainer(config, args.output, device=device, **start)
        except Exception:
            if is_first and is_new:
                remove_unused(args.output)
            raise
        finally:
            patience.cancel()
    if not args.restart and is_first:
        own = [full.table for full in trainer.full_validations]  # started anew
        best = [path for path in _earlier_best(args.output, config) if path not in own]
        for path in [*earlier, *_earlier_models(args, config), *best]:
            path.unlink()
    return trainer


def train(trainer: "Trainer") -> None:
    """Runs the training; the first process prints messages. Raises Stopped after a signal."""
    from mdops.stopping import StopSignal
    from mdops.train.loop.checkpoint import checkpoints
    from mdops.train.loop.distributed import leave_processes
    from mdops.train.report.progress import TrainingProgress

    if not trainer.processes.is_first:
        with StopSignal() as stop:
            trainer.run(stops=stop)
        leave_processes()
        if stop() or trainer.step < trainer.steps:
            raise stop.stopped("")
        return
    first, started = trainer.step, time.perf_counter()
    print(_announcement(trainer), file=sys.stderr, flush=True)
    for branch in trainer.branches.values():
        of = f" of {branch.name}" if branch.name else ""
        print(f"a step{of} is {branch.potential.explain('train')}", file=sys.stderr, flush=True)
    labels = {name: branch.loss.labels for name, branch in trainer.branches.items()}
    with TrainingProgress(first, trainer.steps, labels) as progress, StopSignal() as stop:
        trainer.run(progress.report, progress.update, stop)
    leave_processes()  # the other processes are done
    if trainer.step < trainer.steps:
        written = checkpoints(trainer.folder, trainer.config.training.save_ckpt)[-1]
        raise stop.stopped(
            f"wrote {written} after step {trainer.step} of {trainer.steps}; the same command with --restart "
            "continues"
        )
    print(_summary(trainer, trainer.step - first, time.perf_counter() - started), flush=True)
    if stop():
        raise stop.stopped("the training is complete; the errors of its model were not computed")
    print("\n".join(_errors(trainer)))


def earlier_files(
    args: argparse.Namespace, config: "Config | MultiTaskConfig", written: str | None = None
) -> list[Path]:
    """The checkpoints in the output folder. Raises InputError if files there would be overwritten: those of a training,
    or an input at the path of the one to be `written`."""
    from mdops.train.loop.checkpoint import checkpoints

    training = config.training
    found = checkpoints(args.output, training.save_ckpt) if args.output.is_dir() else []
    results = [
        folder / name
        for folder in _folders(args.output, config)
        for name in (training.disp_file, "model.safetensors")
    ]
    results += _earlier_best(args.output, config)
    if (
        written
        and (args.output / _INPUT).is_file()
        and (args.output / _INPUT).read_text(encoding="utf-8") != written
    ):
        results.append(args.output / _INPUT)
    existing = [path for path in [*found, *results] if path.exists()]
    if existing and not (args.restart or args.overwrite):
        raise InputError(
            f"{existing[0]} belongs to an earlier training: continue it with --restart, replace it with "
            "--overwrite, or choose another folder with --output"
        )
    return found


def _folders(folder: Path, config: "Config | MultiTaskConfig") -> "dict[Path, Config]":
    """The folder of each model, and its input."""
    from mdops.train.config.branches import MultiTaskConfig

    if isinstance(config, MultiTaskConfig):
        return {folder / name: own for name, own in config.branches.items()}
    return {folder: config}


def _earlier_best(folder: Path, config: "Config | MultiTaskConfig") -> list[Path]:
    """The best models and the tables of full validations in a folder."""
    from mdops.train.loop.full_validation import best_files, tables

    found = []
    for place, own in _folders(folder, config).items():
        found += [path for files in best_files(own, place) for path in files.found()]
        found += [path for path in tables(own, place) if path.exists()]
    return found


def _earlier_models(args: argparse.Namespace, config: "Config | MultiTaskConfig") -> list[Path]:
    """The models of an earlier training, which could be mistaken for this one's; without those it starts from."""
    from mdops.files.published import find_model_file

    given = args.init_model or args.finetune
    initial = find_model_file(given) if isinstance(given, Path) else None
    found = [folder / "model.safetensors" for folder in _folders(args.output, config)]
    return [path for path in found if path.exists() and not (initial and path.samefile(initial))]


def _announcement(trainer: "Trainer") -> str:
    """A description of the models and their data."""
    steps, branches = f"{trainer.steps} steps", list(trainer.branches.values())
    if trainer.step:
        steps = f"from step {trainer.step} of {trainer.steps}"
    parameters = sum(p.numel() for p in {p for b in branches for p in b.potential.parameters()})
    count = trainer.processes.count
    shared = f", {count} processes" if count > 1 else ""
    if len(branches) == 1:
        weights, adapters = (
            [p for p in branches[0].potential.parameters() if p.requires_grad],
            trainer.adapters,
        )
        trained = sum(p.numel() for p in (weights if adapters is None else adapters.trained_of(weights)))
        number = f"{parameters:,} parameters"
        if trained != parameters:
            with_adapters = "" if adapters is None else ", with adapters,"
            number = f"{trained:,} parameters{with_adapters} of a model of {parameters:,},"
        head = f"training {number} on {_data(branches[0])}; {steps}, seed {trainer.seed}{shared}"
        return f"{head}\n{_labels(branches[0])}"
    lines = [
        f"training {len(branches)} models, {parameters:,} parameters; {steps}, seed {trainer.seed}{shared}"
    ]
    odds = zip(branches, trainer.odds, strict=True)
    for branch, share in odds:
        lines += [f"  {branch.name}: {share:.1%} of the steps, on {_data(branch)}", f"    {_labels(branch)}"]
    return "\n".join(lines)


def _data(branch: "Branch") -> str:
    """A description of a model's data."""
    data, validation = branch.frames.data, branch.validation
    also = "" if validation is None else f", validation on {len(validation.data)}"
    return f"{len(data)} frames with {data.counted().sum():,} atoms ({', '.join(data.type_map)}){also}"


def _labels(branch: "Branch") -> str:
    """The labels for a model's training, and how many frames have them."""
    from mdops.train.loop.factories import trained_labels

    counts = trained_labels(branch.loss, branch.frames.data)
    return f"learns from {', '.join(f'{name} ({count} frames)' for name, count in counts.items())}"


def _summary(trainer: "Trainer", steps: int, seconds: float) -> str:
    """A summary of the work, with the paths of the results."""
    lines = [f"{steps} steps in {seconds:.1f} s"] if steps else ["the training was complete"]
    for full in trainer.full_validations:
        best = [path for path in full.best_files.found() if path.suffix == ".safetensors"]
        lines += [f"best by {full.metric}: {path}" for path in best]
    names = ("model.safetensors", trainer.config.training.disp_file)
    for branch in trainer.branches.values():
        lines.append(f"wrote {' and '.join(str(branch.folder / name) for name in names)}")
    return "\n".join(lines)
