"""What is not a number stays so, from a model's parameters and weights to its results."""

import pytest
import torch
from reference_cases import DATA, model_path, references

from mdops import load

NAN = float("nan")


def all_nan(result) -> bool:
    return all(result[name].isnan().all() for name in ("energy", "atom_energy", "forces", "virial"))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("spline", [True, False])
def test_frame_parameters(dtype, spline):
    potential = load(model_path("fparam_aparam"), dtype=dtype, spline=spline)
    (reference, *_) = references(DATA / "fparam_aparam")
    fparam = torch.full_like(reference.fparam, NAN)
    assert all_nan(potential.evaluate(reference.system, fparam=fparam, aparam=reference.aparam))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_of_any_layer(dtype):
    (reference, *_) = references(DATA / "base")
    count = len(list(load(model_path("base")).model.fitting.parameters()))
    for k in range(count):
        potential = load(model_path("base"), dtype=dtype)
        weight = list(potential.model.fitting.parameters())[k]
        with torch.no_grad():
            weight.view(-1)[-1] = NAN
        assert potential.evaluate(reference.system)["energy"].isnan().all(), k
