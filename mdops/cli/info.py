"""What a model file holds, and how mdops evaluates it."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mdops.nn import Potential

HELP = "what a model file holds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model file")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="to compute in")


def run(args: argparse.Namespace) -> int:
    from mdops.errors import UnsupportedModelError
    from mdops.io import describe, read_model
    from mdops.nn import load

    file = read_model(args.model)
    _show("file", args.model)
    _show("source", _source(file.source))
    _show("kind", describe(file.model))
    try:
        potential = load(args.model, dtype=args.dtype)
    except UnsupportedModelError as error:
        _show("supported", f"no: {error}")
        return 0
    for name, value in _parts(potential).items():
        _show(name, value)
    return 0


def _show(name: str, value: Any) -> None:
    print(f"{name:<18}{value}")


def _source(source: dict[str, Any]) -> str:
    """The format of the file, what wrote it, and what it was trained on."""
    made = _software(source)
    told = [source["format"], f"by {made}" if made else "", str(source.get("backend") or "")]
    distance, training = source.get("min_nbor_dist"), source.get("training")
    if isinstance(distance, int | float):
        told.append(f"closest pair in the training data {distance:.3f} A")
    if isinstance(training, dict):
        told.append(f"after step {training.get('step')} of {training.get('steps')}")
    began = source.get("began_with")
    if isinstance(began, dict):
        told.append(f"begun with a model of {_software(began) or 'unknown origin'}")
    return ", ".join(part for part in told if part)


def _software(source: dict[str, Any]) -> str:
    """Name and version."""
    return " ".join(str(source[k]) for k in ("software", "version") if source.get(k))


def _parts(potential: "Potential") -> dict[str, str]:
    from mdops.nn.fused import supports

    d, fitting = potential.descriptor, potential.fitting
    sel = ", ".join(f"{t} {n}" for t, n in zip(potential.type_map, potential.sel, strict=True))
    parameters = sum(p.numel() for p in potential.parameters())
    shared = "one for all types" if len(fitting.nets) < len(potential.type_map) else "one a type"
    layers = [layer.outputs for layer in d.net(0, 0).layers]
    hidden = [layer.outputs for layer in fitting.net(0).layers[:-1]]
    step = "one fused op" if supports(potential) else "separate ops (the fused op does not cover this model)"
    return {
        "elements": ", ".join(potential.type_map),
        "cutoff": f"{potential.cutoff:g} A, smooth from {d.cutoff_smooth:g} A",
        "sel": sel,
        "embedding nets": f"{len(d.nets)} of {_widths(layers)}, axis {d.axis_neuron}",
        "fitting nets": f"{_widths(hidden)}, {shared}",
        "parameters": f"{parameters:,}",
        "frame, atomic": f"{fitting.fparam.size} frame and {fitting.aparam.size} atomic parameters",
        "evaluated as": _evaluation(potential),
        "step": step,
    }


def _widths(outputs: list[int]) -> str:
    return "-".join(str(n) for n in outputs)


def _evaluation(potential: "Potential") -> str:
    grid = potential.grid
    precision = str(potential.dtype).removeprefix("torch.")
    if grid is None:
        return f"exact nets, {precision}"
    return (
        f"splines of {grid.intervals} intervals, {precision}, error {grid.error:.1e} of the forces of "
        f"pairs, beyond r_min = {grid.r_min:g} A"
    )
