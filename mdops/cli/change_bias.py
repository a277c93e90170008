"""Changes the energies of a model's elements: fits them to data like DeePMD-kit's change-bias, or sets given ones."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mdops.cli.arguments import add_head, add_overwrite, add_systems, require_absent, systems_of
from mdops.errors import InputError

if TYPE_CHECKING:
    from mdops.potential import Potential

HELP = "fit the energies of a model's elements to data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("input", type=Path, metavar="MODEL", help="a model file")
    source = add_systems(parser)
    source.add_argument("--bias-value", "-b", type=float, nargs="+", metavar="EV",
                        help="energies of the elements, in the order of the type map, instead of a fit")  # fmt: skip
    add(
        "--numb-batch",
        "-n",
        type=int,
        default=0,
        metavar="FRAMES",
        help="how many frames of each system to use; 0: all",
    )
    add("--mode", "-m", choices=("change", "set"), default="change",
        help="change: fit labels minus predictions, and add this to the energies; set: fit the labels")  # fmt: skip
    add("--output", "-o", type=Path, metavar="FILE",
        help="the file to write; default: MODEL_updated, in MODEL's format or .dp")  # fmt: skip
    add_overwrite(parser, "the file to write")
    add("--device", default="cpu", help="where to compute")
    add_head(parser)


def run(args: argparse.Namespace) -> int:
    from mdops.files.published import find_model_file
    from mdops.io.write import SUFFIXES, require_writable
    from mdops.loading import load

    kept = args.input.suffix if args.input.suffix in SUFFIXES else ".dp"
    # A folder without a name, such as `.`, is not a model: `load` raises the error.
    own = args.input if args.input.name else args.input / "model"
    output = args.output or own.with_name(f"{find_model_file(args.input).stem}_updated{kept}")
    require_writable(output)
    require_absent(output, overwrite=args.overwrite)
    model = load(args.input, head=args.head, device=args.device, dtype="float64", overflow="truncate")
    model.require_energies("change-bias", adds_charges=True)
    before = model.model.out_bias.cpu().numpy().copy()
    if args.bias_value is not None:
        _take(model, args.bias_value)
    else:
        _fit(model, args)
    after = model.model.out_bias.cpu().numpy()
    for element, old, new in zip(model.model.elements, before, after, strict=False):
        print(f"{element:<3} {old:16.8f} -> {new:16.8f} eV")
    model.save(output)
    print(f"wrote {output}")
    return 0


def _take(model: "Potential", values: list[float]) -> None:
    import torch

    elements = model.model.elements
    if len(values) != len(elements):
        raise InputError(
            f"--bias-value has {len(values)} energies, but the model's elements are {', '.join(elements)}"
        )
    model.model.out_bias[: len(values)] = torch.tensor(values, dtype=torch.float64)


def _fit(model: "Potential", args: argparse.Namespace) -> None:
    import numpy as np

    from mdops.data.evaluation import load_for
    from mdops.data.neighbor_lists import PairLists
    from mdops.data.spins import with_spins
    from mdops.data.statistics import spread_frames
    from mdops.errors import DataError
    from mdops.train.model.initial import refit_bias, set_bias
    from mdops.train.model.statistics import fit_rcond, preset_energies

    if args.numb_batch < 0:
        raise InputError(f"--numb-batch {args.numb_batch}: expected a number of frames, or 0 for all")
    data, spin = load_for(model, systems_of(args)), model.model.spin
    data = data if spin is None else with_spins(data, spin)
    frames = np.arange(len(data))
    if args.numb_batch:
        frames = spread_frames(data, args.numb_batch, [1] * len(data.systems))
    if not any(data.has(name) and data.present[name][frames].any() for name in ("energy", "atom_energy")):
        raise DataError(f"{', '.join(data.systems)}: no frame has energies to fit to")
    if args.mode == "set":
        set_bias(model, data, frames)
    else:
        options = model.model.options
        preset = {t: e for t, e in enumerate(preset_energies(options)) if e is not None}
        lists = PairLists(data, model.cutoff, masks=model.model.masks)
        refit_bias(model, data, lists, frames, preset=preset, rcond=fit_rcond(options))
