"""DPA-4 with splines of lengths, beside its nets."""

import numpy as np
import pytest
import torch
from kind_cases import KINDS, LIMITS, alloy, cases, new_potential
from reference_cases import on_device, references, relative_error
from test_dpa4 import INPUT

import mdops
from mdops.evaluators import length_splines
from mdops.models.dpa4.descriptor import DPA4
from mdops.tables import radial_tables
from mdops.tables.radial_tables import choose_intervals, spline_error

DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=pytest.mark.gpu)]
BY_BLOCKS = {**INPUT, "radial_so2_mode": "degree_channel", "radial_so2_rank": 1, "n_atten_head": 1}


def exact(potential):
    return mdops.Potential(potential.model)


def test_models_that_can_have_splines():
    names = {case: mdops.load(KINDS / case / "model.dp").evaluator().name for case in cases("dpa4_")}
    assert set(names.values()) == {"radial splines", "autograd"}
    potential = new_potential(BY_BLOCKS)
    assert potential.evaluator().name == "autograd"  # without knots
    potential.use_spline()
    assert potential.evaluator().name == "radial splines"
    assert potential.evaluator("differentiate").name == "autograd"
    for more, reason in (
        ({"activation_function": "relu"}, "slopes"),
        ({"lmax": 0, "mmax": 0, "kmax": 0}, "no atom has coefficients"),
        ({"add_chg_spin_ebd": True}, "depend on charges"),
    ):
        descriptor = new_potential({**BY_BLOCKS, **more}).model.descriptor
        assert reason in descriptor.why_no_splines


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", cases("dpa4_"))
def test_deepmd_kits_answers(case, dtype, device):
    """Of models that have splines, and of the others."""
    overflow = "truncate" if case.endswith("few_places") else "error"
    potential = mdops.load(KINDS / case / "model.dp", dtype=dtype, device=device, overflow=overflow)
    limits = LIMITS["float32" if case.endswith("float32") else dtype]
    for one in references(KINDS / case):
        more = [t if t is None else t.to(device) for t in (one.fparam, one.aparam)]
        found = potential.evaluate(on_device(one.system, device), None, *more)
        for name in found.keys() & one.answers.keys():
            error = relative_error(found[name].cpu(), one.answers[name])
            assert error < limits["energy" not in name], f"{one.name}: {name} is off by {error:.1e}"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"n_atten_head": 0},
        {"use_env_seed": False},
        {"lmax": 2, "n_blocks": 2},
        {"n_focus": 2, "focus_dim": 4, "lmax": 2},
        {"n_focus": 2, "mmax": 2, "lmax": 2},
        {"radial_so2_mode": "none", "lmax": 2},
        {"radial_so2_rank": 0, "n_focus": 2, "mlp_bias": True},
        {"radial_so2_rank": 2, "s2_activation": [True, True], "mlp_bias": True},
        {"edge_cartesian": True, "layer_scale": True},
    ],
)
def test_answers_are_those_of_the_nets(more, dtype, device):
    """Of all types, of one, and of edges in runs."""
    potential = new_potential({**BY_BLOCKS, **more})
    with torch.no_grad():
        for weight in potential.model.parameters():
            weight += 0.05 * torch.randn(
                weight.shape, generator=torch.Generator().manual_seed(weight.numel()), dtype=weight.dtype
            )
    potential = potential.to(device).to(dtype)
    potential.use_spline()
    atoms = alloy()
    pure = atoms.copy()
    pure.symbols[:] = "Al"
    for system in (atoms, pure):
        found, wanted = potential.compute(system), exact(potential).compute(system)
        assert potential.evaluator().name == "radial splines"
        largest = np.abs(wanted["forces"]).max()
        assert largest > 1e-6
        limit = {torch.float64: 1e-9, torch.float32: 3e-5}[dtype]
        assert np.abs(found["forces"] - wanted["forces"]).max() < limit * largest
        np.testing.assert_allclose(found["atom_energy"], wanted["atom_energy"], rtol=max(limit, 1e-9))


def test_edges_in_runs_go_by_splines(monkeypatch):
    potential = new_potential(BY_BLOCKS)
    potential.use_spline()
    atoms = alloy()
    wanted = potential.compute(atoms)
    monkeypatch.setattr(DPA4, "_edges_at_once", lambda *_: 37)
    found = potential.compute(atoms)
    for name in ("forces", "virial", "energy"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-10, atol=1e-11)


def test_knots_keep_the_tolerance_or_there_are_none(monkeypatch):
    potential = new_potential(BY_BLOCKS)
    descriptor = potential.model.descriptor.double()
    errors = [spline_error(descriptor, (0, 1), intervals) for intervals in (64, 128, 256)]
    assert errors[0] > 8 * errors[1] > 64 * errors[2]
    intervals, error = choose_intervals(descriptor, (0, 1), 1e-6)
    assert error <= 1e-6 and spline_error(descriptor, (0, 1), intervals) == error
    monkeypatch.setattr(radial_tables, "_MOST", 64)
    assert choose_intervals(descriptor, (0, 1), 1e-12) is None
    potential.use_spline()
    with pytest.warns(UserWarning, match="no splines for 2 types"):
        found = potential.compute(alloy())
    np.testing.assert_allclose(found["forces"], exact(potential).compute(alloy())["forces"], atol=1e-13)


def test_tables_are_not_larger_than_there_is_room(monkeypatch):
    monkeypatch.setattr(length_splines, "_MOST_NUMBERS", 100)
    potential = new_potential(BY_BLOCKS)
    potential.use_spline()
    with pytest.warns(UserWarning, match="no splines"):
        potential.compute(alloy())


@pytest.mark.parametrize("spare", [-1, 0])
def test_tables_without_room_are_not_made(spare, monkeypatch):
    """Those of many types and of functions of each channel would take more memory than there is."""
    descriptor, types, made = (
        new_potential({**BY_BLOCKS, "radial_so2_rank": 0}).model.descriptor,
        (0, 1) * 4,
        [],
    )
    whole = radial_tables.radial_splines(descriptor, types, 1e-4, 2**27)
    numbers, own = sum(table.numel() for table in whole.tables.values()), radial_tables._functions

    def functions(descriptor, r, types):
        found = own(descriptor, r, types)
        made.append(sum(one.numel() for one in found.values()))
        return found

    monkeypatch.setattr(radial_tables, "_functions", functions)
    found = radial_tables.radial_splines(descriptor, types, 1e-4, numbers + spare)
    assert (found is None) == (spare < 0)
    assert (max(made) == numbers) == (spare == 0)
    made.clear()
    assert radial_tables.radial_splines(descriptor, types, 1e-4, numbers // 20) is None
    assert len(made) == 1


def test_new_weights_make_new_tables():
    potential = new_potential(BY_BLOCKS)
    potential.use_spline()
    atoms = alloy()
    before = potential.compute(atoms)["energy"]
    with torch.no_grad():
        for weight in potential.model.descriptor.radial_embedding.parameters():
            weight *= 1.3
        for weight in potential.model.descriptor.blocks.parameters():
            weight += 0.02
    after = potential.compute(atoms)["energy"]
    np.testing.assert_allclose(after, exact(potential).compute(atoms)["energy"], rtol=1e-10)
    assert np.abs(after - before).max() > 1e-6
