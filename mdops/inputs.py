"""Checks of the models that a program for simulations is given."""

from collections.abc import Sequence

from mdops.errors import InputError
from mdops.nn.quantized import Scheme
from mdops.potential import Potential


def check_models(models: Sequence[Potential], *, energies: bool = True) -> None:
    """Raises InputError unless there is a model, all know the same elements and answer the same, and low-bit ones are
    allowed; UnsupportedModelError where there are no `energies`, and have to be."""
    if not models:
        raise InputError("no model is given")
    for model in models:
        if not isinstance(model, Potential):
            raise InputError(f"{model!r} is given as a model, expected a result of `mdops.load`")
        if energies:
            model.require_energies("a simulation")
        if model.model.outputs != models[0].model.outputs:
            names = [", ".join(output.name for output in m.model.outputs) for m in (models[0], model)]
            raise InputError(
                f"the models must have the same outputs: the first has {names[0]}, another one {names[1]}"
            )
        if model.scheme is not None and not model.allow_low_bit:
            raise InputError(_low_bit_refusal(model.scheme))
    for k, model in enumerate(models[1:], 2):
        if sorted(model.model.elements) != sorted(models[0].model.elements):
            raise InputError(
                f"the models must know the same elements: the first has {', '.join(models[0].model.elements)}, "
                f"number {k} has {', '.join(model.model.elements)}"
            )


def _low_bit_refusal(scheme: Scheme) -> str:
    forces = (
        "its forces are the derivatives of its energy, which differs from the full model's"
        if scheme.has_exact_forces
        else "its forces are not quite the derivatives of its energy, so that energy drifts"
    )
    return (
        f"the model is low-bit ({scheme.name}: {scheme.words}): {forces}. `mdops quantize` reports by how much. To use "
        "it for dynamics all the same, set allow_low_bit=True"
    )


def takes(model: Potential, name: str) -> bool:
    """Whether the model has the parameter `name`, "fparam" or "aparam"."""
    return model.parameter_sizes[name] > 0
