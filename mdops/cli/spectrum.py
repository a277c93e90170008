"""Computes the infrared spectrum of a trajectory with a model of dipoles, or the Raman spectrum with a model of
polarizabilities. Writes a table of wavenumbers and values, and a picture (docs/how-to/spectrum.md)."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from mdops.cli.arguments import add_device, add_head, add_overwrite, require_absent, require_other
from mdops.errors import InputError

if TYPE_CHECKING:
    from mdops.spectra import Spectrum

HELP = "compute infrared and Raman spectra"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trajectory", metavar="TRAJECTORY", help="consecutive frames, in a file that ASE reads; "
        "FILE@BEGIN:END for a part of them")  # fmt: skip
    add("--model", "-m", required=True, metavar="MODEL", help="a model of dipoles, or of polarizabilities")
    add("--interval", type=float, required=True, metavar="FS", help="time between two frames, fs")
    add("--temperature", type=float, default=300.0, metavar="K", help="temperature of the run")
    add(
        "--resolution",
        type=float,
        default=20.0,
        metavar="CM",
        help="width of a sharp line, 1/cm",
    )
    add(
        "--limit",
        type=float,
        default=4000.0,
        metavar="CM",
        help="the largest wavenumber, 1/cm",
    )
    add("--volume", type=float, metavar="A3", help="volume, A^3; default: that of the cell")
    add("--factor", type=float, default=1.0, metavar="X",
        help="factor of the model's dipoles: the charge, e, if they are the positions of charges, A")  # fmt: skip
    add("--charges", nargs="+", default=[], metavar="ELEMENT=E",
        help="charges at the atoms, e; their dipoles are added")  # fmt: skip
    add("--output", "-o", type=Path, default=Path("spectrum.csv"), metavar="FILE", help="the table, CSV")
    add("--plot", type=Path, metavar="FILE", help="draw the spectrum to FILE")
    add_overwrite(parser, "the table, or the picture,")
    add_device(parser)
    add_head(parser)


def run(args: argparse.Namespace) -> int:
    from mdops import spectra
    from mdops.files.atomic import replace_file
    from mdops.files.structures import frames_file, read_structures
    from mdops.loading import load
    from mdops.plots import require_picture

    require_absent(args.output, overwrite=args.overwrite)
    require_other(args.output, "--output", (args.model, frames_file(args.trajectory)))
    if args.plot is not None:
        require_picture(args.plot)
        require_absent(args.plot, overwrite=args.overwrite)
    if not math.isfinite(args.factor):
        raise InputError(f"--factor {args.factor}: expected a number")
    charges = _charges(args.charges)
    frames = read_structures(args.trajectory)
    model = load(args.model, head=args.head, device=args.device, overflow=args.overflow)
    name = model.model.outputs[0].name
    if name not in ("dipole", "polarizability"):
        raise InputError(f"{args.model} answers {name}, but spectra need dipoles or polarizabilities")
    series = spectra.responses(model, frames)
    options: dict[str, float] = {"resolution": args.resolution, "limit": args.limit}
    if name == "dipole":
        series = args.factor * series
        if charges:
            series = spectra.with_charges(series, frames, charges)
        if args.volume is None and frames[0].cell.rank < 3:
            raise InputError("the frames have no cell: give --volume")
        volume = frames[0].get_volume() if args.volume is None else args.volume
        found = spectra.infrared(series, args.interval, volume, args.temperature, **options)
        title = "absorption coefficient times refractive index (1/cm)"
    else:
        found = spectra.raman(series, args.interval, args.temperature, **options)
        title = "Raman intensity"
    rows = zip(found.wavenumbers, found.values, strict=True)
    text = "\n".join([f"wavenumber (1/cm),{title}", *(f"{x:g},{y:.6g}" for x, y in rows)])
    replace_file(args.output, (text + "\n").encode())
    peak = found.wavenumbers[found.values.argmax()]
    print(
        f"{len(frames)} frames, {args.interval * (len(frames) - 1):g} fs; the highest peak is at {peak:g} 1/cm"
    )
    print(f"wrote {args.output}")
    if args.plot is not None:
        _draw(found, title, args.plot)
        print(f"wrote {args.plot}")
    return 0


def _charges(given: list[str]) -> dict[str, float]:
    found = {}
    for text in given:
        element, _, number = text.partition("=")
        try:
            found[element] = float(number)
        except ValueError:
            found[element] = math.nan
        if not math.isfinite(found[element]):
            raise InputError(f"--charges {text}: expected ELEMENT=NUMBER, as in O=-2")
    return found


def _draw(spectrum: "Spectrum", title: str, path: Path) -> None:
    from mdops.plots import figure

    drawn = figure(1, 0.75)
    (axes,) = drawn.axes
    axes.plot(spectrum.wavenumbers, spectrum.values, lw=1.2)
    axes.set(xlabel="wavenumber (1/cm)", ylabel=title, xlim=(0, spectrum.wavenumbers[-1]), ylim=(0, None))
    drawn.savefig(path, dpi=150)
