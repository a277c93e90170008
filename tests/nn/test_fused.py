"""The op for a whole step against the same model composed of the single ops, on every model option."""

import warnings

import pytest
import torch
from reference_cases import CASES, DATA, model_path, overflow_of, references, relative_error

from mdops.nn import load

# Vacuum energies that depend on further inputs, and a first fitting layer as wide as its input.
COMPOSED_ONLY = ("atom_ener_shared", "axis_all")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_fused_is_composed(case, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        potential = load(model_path(case), dtype=dtype, overflow=overflow_of(case))
        if potential.grid is None:
            pytest.skip("a net with kinks has no spline within the error bound")
        assert (potential.fused() is None) == (case in COMPOSED_ONLY)
        for reference in references(DATA / case):
            asked = (reference.system, None, reference.fparam, reference.aparam)
            fused = potential.evaluate(*asked)
            composed = potential.evaluate(*asked, atom_virial=True)
            tolerance = 1e-10 if dtype == torch.float64 else 1e-4
            for name, value in fused.items():
                assert relative_error(value, composed[name]) < tolerance, (reference.name, name)


def test_new_weights_are_seen():
    potential = load(model_path("se_a_alloy"), dtype=torch.float64)
    (reference, *_) = references(DATA / "se_a_alloy")
    before = potential.evaluate(reference.system)["energy"]
    with torch.no_grad():
        for weight in potential.parameters():
            weight.mul_(1.01)
    after = potential.evaluate(reference.system)
    composed = potential.evaluate(reference.system, atom_virial=True)
    assert not torch.allclose(before, after["energy"], rtol=1e-6)
    assert relative_error(after["forces"], composed["forces"]) < 1e-9


def test_the_result_does_not_depend_on_the_list():
    """A list with skin, and one with a longer row, name the same pairs within the cutoff."""
    from mdops.ops import neighbor_list

    potential = load(model_path("se_a_alloy"), dtype=torch.float64)
    (reference, *_) = references(DATA / "se_a_alloy")
    s = reference.system
    plain = potential.evaluate(s)
    for skin, capacity in ((0.0, 300), (1.5, None)):
        longer = neighbor_list(
            s.positions,
            s.cell,
            s.pbc,
            s.types,
            potential.cutoff + skin,
            batch=s.batch,
            ntypes=3,
            capacity=capacity,
        )
        other = potential.evaluate(s, longer)
        for name, value in plain.items():
            assert relative_error(other[name], value) < 1e-12, name


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads(threads):
    potential = load(model_path("se_a_alloy"), dtype=torch.float64)
    (reference, *_) = references(DATA / "se_a_alloy")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = potential.evaluate(reference.system)
        torch.set_num_threads(threads)
        several = potential.evaluate(reference.system)
    finally:
        torch.set_num_threads(before)
    for name, value in one.items():
        assert relative_error(several[name], value) < 1e-12
