"""Makes a low-bit model from a trained one: the hidden layers of its fitting nets multiply 8-bit, float8 or ternary
numbers. It is fitted to data, and with --steps trained further. The report shows the effects on other frames."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mdops.cli.arguments import add_head, require_absent, require_other, require_place
from mdops.errors import InputError

if TYPE_CHECKING:
    from mdops.potential import Potential
    from mdops.quantization import QuantizationReport
    from mdops.train import Dataset

HELP = "make a low-bit model from a trained one"
SCHEMES = (
    "w8a8",
    "fp8",
    "ternary",
    "w8",
    "wfp8",
    "wternary",
)  # as in mdops.nn.quantized, which loads the ops
_EVERY = 5  # without --test, one of so many frames is kept for the report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="a model file")
    add_head(parser)
    add("--scheme", required=True, choices=SCHEMES,
        help="numbers of weights and inputs: 8-bit integers, float8, or ternary weights with 8-bit integers. w8, wfp8, "
             "wternary: only of weights; forces then remain the derivatives of the energy")  # fmt: skip
    add("--data", "-d", nargs="+", required=True, metavar="SYSTEM",
        help="data of the fit: systems of DeePMD-kit, folders of them, and files that ASE reads")  # fmt: skip
    add("--test", nargs="+", default=[], metavar="SYSTEM",
        help=f"frames of the report; default: every {_EVERY}th frame of --data, not used by the fit")  # fmt: skip
    add("--names", nargs="+", default=[], metavar="LABEL=NAME",
        help="names of energy, forces, virial, stress, fparam or aparam in files that ASE reads")  # fmt: skip
    add(
        "--output",
        "-o",
        type=Path,
        metavar="OUT",
        help="the model to write; default: MODEL_SCHEME.safetensors in the current folder",
    )
    add("--steps", type=int, default=0, help="steps of training with rounded numbers")
    add("--learning-rate", type=float, default=3e-4, help="initial learning rate; it falls to a hundredth")
    add("--batch-size", type=int, default=1, help="frames per step")
    add("--seed", type=int, default=0, help="seed of the order of frames")
    add("--folder", type=Path, help="folder of the training's files; default: OUT with .training")
    add("--checkpoint-every", type=int, default=500, metavar="N", help="steps")
    add("--restart", action="store_true", help="continue the training; start if there is none")
    add("--overwrite", action="store_true", help="replace OUT and an earlier training")
    add(
        "--drift",
        type=float,
        default=1.0,
        metavar="PS",
        help="length of constant-energy dynamics for the report; 0: none",
    )
    add("--drift-temperature", type=float, default=300.0, metavar="K", help="of that")
    add("--report", type=Path, metavar="FILE", help="write the report to FILE, as JSON")
    add("--device", default="cpu", help="where to compute")


def run(args: argparse.Namespace) -> int:
    from mdops.loading import load
    from mdops.nn.quantized import SCHEMES as known
    from mdops.quantization import compare, quantize, table, verdict

    output = _require_outputs(args)
    full = load(args.model, head=args.head, device=args.device)
    fitted, tested = _data(args, full)
    low_bit = quantize(full, args.scheme, fitted)
    if args.steps:
        low_bit = _trained(args, low_bit)
    low_bit.save(output)
    # The model as the file has it, with the splines of simulations.
    low_bit = load(output, device=args.device)
    if args.drift:
        print(f"dynamics of both models for {args.drift:g} ps (--drift 0: none)", file=sys.stderr, flush=True)
    rows = compare(full, {args.scheme: low_bit}, tested, args.drift, args.drift_temperature)
    print(
        f"{len(tested)} frames that the fit did not use; a step of {tested.sizes()[0]} atoms, {args.device}"
    )
    print(table(rows))
    print(verdict(rows[0], rows[1], known[args.scheme]))
    if args.report is not None:
        _write_report(args, rows)
    print(f"wrote {output}; dynamics with it need --allow-low-bit")
    return 0


def _require_outputs(args: argparse.Namespace) -> Path:
    """The path of the model. Raises InputError before the work if files cannot be written, or for invalid options."""
    from mdops.files.published import find_model_file
    from mdops.io.write import require_writable

    output: Path = args.output or Path(f"{find_model_file(args.model).stem}_{args.scheme}.safetensors")
    require_writable(output)
    if output.exists() and args.model.exists() and output.samefile(args.model):
        raise InputError(f"{output} is also the input model: give another name with --output")
    require_absent(output, overwrite=args.overwrite or args.restart)
    if args.steps < 0 or args.batch_size < 1 or args.checkpoint_every < 1 or not args.learning_rate > 0:
        raise InputError("--steps, --batch-size, --checkpoint-every and --learning-rate must be positive")
    if args.restart and not args.steps:
        raise InputError("--restart continues a training, but without --steps there is none")
    if not 0 <= args.drift < float("inf"):
        raise InputError(f"--drift {args.drift}: expected ps")
    if not 0 < args.drift_temperature < float("inf"):
        raise InputError(f"--drift-temperature {args.drift_temperature}: expected K")
    if args.report is not None:
        require_place(args.report, "--report")
        require_other(args.report, "--report", (args.model, output, *args.data, *(args.test or ())))
    args.folder = args.folder or output.with_name(output.name + ".training")
    return output


def _data(args: argparse.Namespace, model: "Potential") -> tuple["Dataset", "Dataset"]:
    """The data of the fit, and the data of the report."""
    from mdops.cli.test import label_names
    from mdops.train import load_dataset

    names, types = label_names(args.names), model.type_map
    if args.test:
        return load_dataset(args.data, types, names=names), load_dataset(args.test, types, names=names)
    parts = [
        load_dataset(args.data, types, names=names, leave_out=_EVERY, left_out=left) for left in (False, True)
    ]
    return parts[0], parts[1]


def _trained(args: argparse.Namespace, low_bit: "Potential") -> "Potential":
    """The model after its training, with the loop of `mdops train`."""
    from mdops._library import check_device
    from mdops.cli.train import earlier_files, make_trainer, train
    from mdops.train import parse_config

    config = parse_config(_input(args, low_bit))
    as_train = argparse.Namespace(
        output=args.folder, restart=args.restart, overwrite=args.overwrite, init_model=low_bit, finetune=None,
        head=None, use_pretrain_script=True,
    )  # fmt: skip
    trainer = make_trainer(as_train, config, earlier_files(as_train, config), check_device(args.device))
    found = trainer.potential.scheme
    if found is None or found.name != args.scheme:
        of = "no scheme" if found is None else found.name
        raise InputError(f"{args.folder} has a training of {of}, but --scheme is {args.scheme}")
    print(f"{args.scheme}: training in {args.folder}", file=sys.stderr, flush=True)
    train(trainer)
    return trainer.potential


def _input(args: argparse.Namespace, model: "Potential") -> dict[str, Any]:
    """The training input."""
    from mdops.cli.test import label_names
    from mdops.models.registry import definition

    names = label_names(args.names) or None
    systems = {"systems": args.data, "names": names, "leave_out": 0 if args.test else _EVERY}
    rate = {"type": "cosine", "start_lr": args.learning_rate, "stop_lr": args.learning_rate / 100}
    training: dict[str, Any] = {
        "training_data": {**systems, "batch_size": args.batch_size},
        "numb_steps": args.steps,
        "seed": args.seed,
        "disp_freq": max(1, min(100, args.steps // 10)),
        "save_freq": args.checkpoint_every,
        "max_ckpt_keep": 2,
    }
    section = _without_none(definition("model", model.model.to_tree()))
    return {"model": section, "learning_rate": rate, "training": training, **_loss(model)}


def _loss(model: "Potential") -> dict[str, Any]:
    """A section for a model that was trained without virials, because training on virials would worsen its forces;
    empty for other models, which are trained on all labels."""
    training = model.source.get("training")
    labels = training.get("labels") if isinstance(training, dict) else None
    return {"loss": {"type": "ener"}} if isinstance(labels, dict) and not labels.get("virial") else {}


def _without_none(node: Any) -> Any:
    """A section without keys that are None, because an input cannot have all of them."""
    if isinstance(node, dict):
        return {key: _without_none(value) for key, value in node.items() if value is not None}
    return [_without_none(value) for value in node] if isinstance(node, list) else node


def _write_report(args: argparse.Namespace, rows: "list[QuantizationReport]") -> None:
    from mdops.files.atomic import replace_file

    options = ("scheme", "data", "test", "steps", "drift", "drift_temperature")
    found = {
        "model": str(args.model),
        **{name: getattr(args, name) for name in options},
        "units": "eV, A, ps; of energies per atom",
        "models": [row.as_dict() for row in rows],
    }
    replace_file(args.report, (json.dumps(found, indent=1) + "\n").encode())
