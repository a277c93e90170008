"""Compares a model with reference data: MAE and RMSE of energies, forces and virials, or of its other outputs. On
request it makes a table of the frames, parity plots, and the learning curve from lcurve.out."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mdops.cli.arguments import add_head, add_matmul, add_spline_options, require_other, require_place
from mdops.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from mdops.data.evaluation import Evaluation
    from mdops.potential import Matmul, Potential

HELP = "compute errors of a model on reference data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", "-m", required=True, metavar="MODEL", help="a model file")
    add("--data", "-d", nargs="+", required=True, metavar="SYSTEM",
        help="systems of DeePMD-kit, folders of them, and files that ASE reads")  # fmt: skip
    add("--names", nargs="+", default=[], metavar="LABEL=NAME",
        help="names of energy, forces, virial, stress, fparam or aparam in files that ASE reads")  # fmt: skip
    add("--plots", type=Path, metavar="FOLDER", help="draw parity.png and learning_curve.png in FOLDER")
    add(
        "--lcurve", type=Path, metavar="FILE", help="the learning curve; default: lcurve.out beside the model"
    )
    add("--table", type=Path, metavar="FILE", help="write the errors of each frame to FILE, as CSV")
    add("--device", default="cpu", help="where to compute")
    add("--dtype", choices=("float32", "float64"), default="float32", help="precision of the computation")
    add_matmul(parser)
    add_head(parser)
    add("--overflow", choices=("error", "truncate", "extend"), default="error",
        help="if there are more neighbours than the model's sel")  # fmt: skip
    add_spline_options(parser)


def run(args: argparse.Namespace) -> int:
    from mdops.data.evaluation import evaluate, load_for
    from mdops.loading import load

    curve = _require_outputs(args)
    model = load(
        args.model, head=args.head, device=args.device, dtype=args.dtype, overflow=args.overflow, spline=args.spline,
        r_min=args.r_min, matmul=args.matmul,
    )  # fmt: skip
    evaluation = evaluate(model, load_for(model, args.data, names=label_names(args.names)))
    _show(evaluation)
    if args.matmul != "float32":
        print(_cost_of_matmul(model, evaluation))
    for path in _write(args, evaluation, curve):
        print(f"wrote {path}")
    return 0


def _cost_of_matmul(model: "Potential", evaluation: "Evaluation") -> str:
    """How far forces and energies with its products are off those of float32, and how much faster they are, for these
    frames."""
    import time

    import numpy as np

    from mdops.data.evaluation import evaluate

    asked, data = model.matmul, evaluation.data
    predictions, times = {}, {}
    choices: tuple[Matmul, ...] = ("float32", asked)
    for name in choices:
        model.use_matmul(name)
        begin = time.perf_counter()
        predictions[name] = evaluate(model, data).predictions
        times[name] = time.perf_counter() - begin
    off = {key: predictions[asked][key] - predictions["float32"][key] for key in ("energy", "forces")}
    forces = 1e3 * np.sqrt(np.square(off["forces"]).mean())
    energy = 1e3 * (np.abs(off["energy"]) / data.sizes()).mean()
    return (
        f"products of {asked}: forces differ from float32's by {forces:.3g} meV/A (rms), energies by {energy:.3g} "
        f"meV/atom; these frames, with their lists, take {times[asked] / times['float32']:.2f} of its time"
    )


def label_names(assignments: list[str]) -> dict[str, str]:
    """The names of labels, from LABEL=NAME each."""
    pairs = [text.partition("=") for text in assignments]
    wrong = [text for text, (label, _, name) in zip(assignments, pairs, strict=True) if not label or not name]
    if wrong:
        raise InputError(f"--names {wrong[0]}: expected LABEL=NAME, as in energy=REF_energy")
    return {label: name for label, _, name in pairs}


def _require_outputs(args: argparse.Namespace) -> "dict[str, np.ndarray] | None":
    """The learning curve to draw, or None. Raises InputError before the work if files cannot be read or written."""
    from mdops.files.published import find_model_file
    from mdops.plots import require_matplotlib
    from mdops.train.report.learning_curve import read_curve

    model = find_model_file(args.model)
    if args.table is not None:
        require_place(args.table, "--table")
        require_other(args.table, "--table", (model, *args.data, *filter(None, [args.lcurve])))
    if args.plots is None:
        if args.lcurve is not None:
            raise InputError("--lcurve needs --plots, the folder for the figure")
        return None
    if args.plots.exists() and not args.plots.is_dir():
        raise InputError(f"--plots {args.plots}: it is a file, expected a folder")
    require_matplotlib()
    beside = model.with_name("lcurve.out")
    return read_curve(args.lcurve or beside) if args.lcurve is not None or beside.is_file() else None


def _show(evaluation: "Evaluation") -> None:
    """Prints the errors of all frames, and of each system if there are several."""
    data = evaluation.data
    _show_errors(f"{len(data)} frames, {data.counted().sum():,} atoms", evaluation, None)
    if len(data.systems) > 1:
        for system, frames in zip(data.systems, data.frames_of_systems(), strict=True):
            print()
            _show_errors(f"{system}: {len(frames)} frames", evaluation, frames)


def _show_errors(title: str, evaluation: "Evaluation", frames: "np.ndarray | None") -> None:
    print(title)
    print(f"  {'':<24}{'MAE':>10}{'RMSE':>10}  {'unit':<10}{'values':>10}")
    for name, error in evaluation.errors(frames).items():
        label = evaluation.data.known[name]
        mae, rmse = label.factor * error.mae, label.factor * error.rmse
        print(f"  {label.component:<24}{mae:>10.4g}{rmse:>10.4g}  {label.shown_unit:<10}{error.count:>10}")


def _write(
    args: argparse.Namespace, evaluation: "Evaluation", curve: "dict[str, np.ndarray] | None"
) -> list[Path]:
    """Writes the requested files, and returns their paths."""
    from mdops.train.report.frame_table import write_table
    from mdops.train.report.plots import learning_curve_plot, parity_plot

    written = []
    if args.table is not None:
        write_table(evaluation, args.table)
        written.append(args.table)
    if args.plots is None:
        return written
    args.plots.mkdir(parents=True, exist_ok=True)
    if evaluation.errors():
        parity_plot(evaluation, args.plots / "parity.png")
        written.append(args.plots / "parity.png")
    if curve is not None:
        learning_curve_plot(curve, args.plots / "learning_curve.png")
        written.append(args.plots / "learning_curve.png")
    return written
