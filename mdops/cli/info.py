"""Describes a model file, and how mdops evaluates it."""

import argparse
from typing import TYPE_CHECKING, Any

from mdops.cli.arguments import add_head

if TYPE_CHECKING:
    from mdops.models import Output
    from mdops.models.spin import Spin
    from mdops.potential import Potential

HELP = "describe a model file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model file")
    add_head(parser)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32", help="precision")
    parser.add_argument("--device", default="cpu", help="the device for which evaluators are shown")


def run(args: argparse.Namespace) -> int:
    from mdops.applicability import describe_domain, domain_of
    from mdops.errors import UnsupportedModelError
    from mdops.files.published import find_model_file
    from mdops.io import describe, read_model
    from mdops.loading import load

    file = read_model(args.model, args.head)
    try:
        options = {"device": args.device, "dtype": args.dtype, "modifier": False}
        potential, problem = load(args.model, head=args.head, **options), None
    except UnsupportedModelError as error:
        potential, problem = None, error
    _show("file", find_model_file(args.model))
    _show("source", _source(file.source, has_virials=potential is None or potential.answers_energies))
    if file.source.get("head"):
        also = ", ".join(file.source.get("head_aliases", []))
        _show("head", f"{file.source['head']} (also {also})" if also else file.source["head"])
    _show("kind", describe(file.model))
    if potential is None:
        _show("supported", f"no: {problem}")
        return 0
    if file.source.get("modifier"):
        section = file.source["modifier"]
        name = f"{section.get('type')} by {section.get('model_name')}"
        _show("modifier", f"{name}: `Potential.compute` and the ASE calculator add its charges")
    domain = describe_domain(domain_of(potential))
    for name, value in {**_parts(potential), **domain}.items():
        _show(name, value)
    return 0


def _show(name: str, value: Any) -> None:
    print(f"{name:<17} {value}")


def _source(source: dict[str, Any], *, has_virials: bool) -> str:
    """The format of the file, the program that wrote it, and the data of its training."""
    made = _software(source)
    parts = [source["format"], f"by {made}" if made else "", str(source.get("backend") or "")]
    distance, training = source.get("min_nbor_dist"), source.get("training")
    if isinstance(distance, int | float):
        parts.append(f"closest pair in the training data {distance:.3f} A")
    if isinstance(training, dict):
        parts.append(f"after step {training.get('step')} of {training.get('steps')}")
        parts.append(_trained_on(training, has_virials=has_virials))
    began = source.get("began_with")
    if isinstance(began, dict):
        parts.append(f"begun with a model of {_software(began) or 'unknown origin'}")
    return ", ".join(part for part in parts if part)


def _trained_on(training: dict[str, Any], *, has_virials: bool) -> str:
    """The frames of the training, and the labels that were used."""
    labels, frames = training.get("labels"), training.get("frames")
    if not isinstance(labels, dict):
        return ""
    counts = [f"{number} with {name}" for name, number in labels.items() if number]
    pressures = has_virials and "energy" in labels and not labels.get("virial")
    without = ", none with virial: its pressures were not trained" if pressures else ""
    return f"trained on {frames} frames ({', '.join(counts)}{without})"


def _software(source: dict[str, Any]) -> str:
    """Name and version of the program."""
    return " ".join(str(source[k]) for k in ("software", "version") if source.get(k))


def _parts(potential: "Potential") -> dict[str, str]:
    parameters, spin = sum(p.numel() for p in potential.parameters()), potential.model.spin
    return {
        "elements": ", ".join(potential.type_map if spin is None else potential.type_map[: spin.ntypes]),
        **({} if spin is None else {"magnetic moments": _moments(potential.type_map, spin)}),
        "cutoff": "none: all pairs of a cluster" if potential.model.masks else f"{potential.cutoff:g} A",
        "answers": "; ".join(map(_output, potential.model.outputs)),
        **potential.model.summary(),
        "parameters": f"{parameters:,}",
        "evaluated as": _evaluation(potential),
        "a step": potential.explain("simulate"),
        "a training step": potential.explain("train"),
        "kernels": _kernels(potential),
    }


def _moments(types: list[str], spin: "Spin") -> str:
    """The elements with magnetic moments, and the distances of their virtual atoms, if there are any."""
    of = zip(types, spin.virtual_scale, spin.use_spin, strict=False)
    magnetic = [(name, scale) for name, scale, has in of if has]
    if not spin.paired:
        return ", ".join(name for name, _ in magnetic)
    return ", ".join(f"{name} ({scale:g} A for one of 1)" for name, scale in magnetic)


def _output(output: "Output") -> str:
    """An output of a model in words."""
    shape = f" ({' x '.join(map(str, output.shape))})" if output.shape else ""
    derived = " with forces and virials" if output.differentiated else ""
    way = "" if output.extensive else ", the mean over the atoms" if output.intensive else ", of atoms alone"
    return f"{output.name}{shape}{derived}{way}"


def _kernels(potential: "Potential") -> str:
    """The kernels of a step, and whether they could be rebuilt."""
    from mdops.jit import in_use
    from mdops.jit.models import why_not

    problem = why_not(potential)
    if problem is not None:
        return f"prebuilt; {problem}"
    key = in_use(potential)
    if key is not None:
        return f"rebuilt for these sizes and this machine: {key}"
    return "prebuilt (`mdops build MODEL` rebuilds them for these sizes and this machine)"


def _evaluation(potential: "Potential") -> str:
    precision = str(potential.dtype).removeprefix("torch.")
    splines = potential.splines()
    if splines is None:
        return f"exact nets, {precision}"
    if not potential.knots:  # the knots are chosen later
        return f"{splines}, {precision}"
    error = max(knots.error for knots in potential.knots)
    return f"{splines}, {precision}, error {error:.1e} of the forces of pairs"
