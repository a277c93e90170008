"""Descriptors of pairs of neighbours with splines of the angle: every option, alone and in hybrids."""

import copy
import warnings
import weakref

import numpy as np
import parts_cases
import pytest
import torch
from ase import Atoms
from kind_cases import KINDS
from reference_cases import (
    SHARED,
    assert_close,
    assert_deepmd_kits_answers,
    on_device,
    relative_error,
)
from test_moments import FLOAT32, SPLINES, alloy, model_of, system_of

import mdops
from mdops import Potential
from mdops.evaluators import Autograd
from mdops.evaluators.splines import Splines
from mdops.md import EnsembleSettings
from mdops.md.engine import Engine
from mdops.models import angles
from mdops.nn import watch
from mdops.tables.angle_knots import choose_angle_knots

# But those of descriptors without angles.
CASES = sorted(
    path.name
    for path in KINDS.iterdir()
    if path.name.startswith(("se_e3", "se_t", "hybrid_few", "hybrid_mixed", "hybrid_r_t", "hybrid_three"))
)
SE_E3 = {"kind": "se_e3", "sel": [60, 40], "neuron": [4, 8], "rcut": 4.0, "rcut_smth": 1.0}
TEBD = {**SE_E3, "kind": "se_e3_tebd", "sel": 90, "tebd_dim": 4}


def options_of(keys):
    """Without those of se_e2_a and DPA-1 that `model_of` has."""
    return {"axis_neuron": None, "attn_layer": None, **keys}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr("test_moments.SMALL", {})


def potential_of(*args, spline=True, overflow="error", **keys):
    potential = Potential(model_of(*args, **keys), overflow=overflow).eval()
    if spline:
        potential.use_spline()
        assert potential.why_no_angle_spline is None and isinstance(potential.evaluator(), Splines)
    return potential


def exactly(potential):
    """The same model without splines."""
    found = copy.deepcopy(potential)
    found.angle_knots = [None for _ in found.angle_knots]
    assert type(found.evaluator()) is Autograd
    return found


# -- DeePMD-kit's answers


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_answers_are_deepmd_kits(case, dtype):
    folder = SHARED / case if (SHARED / case).is_dir() else KINDS / case
    overflow = "truncate" if case.endswith("few_places") else "error"
    potential = mdops.load(folder / "model.dp", dtype=dtype, overflow=overflow)
    assert None not in potential.angle_knots
    assert isinstance(potential.evaluator(), Splines) == (not case.startswith("hybrid")), potential.explain()
    # DeePMD-kit itself computed such a model in float32.
    tolerance = SPLINES if dtype == "float64" and not case.endswith("float32") else FLOAT32
    assert_deepmd_kits_answers(potential, folder, tolerance)


# -- Options

MANY = ("Cu", "Al", "Ni", "Ag", "Au", "Pt", "Pd", "Fe", "Co", "Zn")
COMBINATIONS = {
    "se_e3": {**SE_E3, "resnet_dt": True, "activation_function": "gelu"},
    "se_e3_pairs": {**SE_E3, "exclude_types": [[0, 1]], "env_protection": 0.1, "neuron": [3, 5, 9]},
    "se_e3_absent": {**SE_E3, "model": {"pair_exclude_types": [[1, 1]]}},
    "se_e3_no_places": {**SE_E3, "sel": [60, 0], "elements": ("Cu", "X")},
    "concat": {**TEBD, "use_tebd_bias": True},
    "concat_bare": {**TEBD, "concat_output_tebd": False, "set_davg_zero": False, "exclude_types": [[0, 1]]},
    "concat_many": {**TEBD, "elements": MANY, "use_econf_tebd": True},
    "strip": {**TEBD, "tebd_input_mode": "strip", "smooth": True, "rcut_smth": 2.5},
    "strip_pairs": {**TEBD, "tebd_input_mode": "strip", "smooth": True, "exclude_types": [[0, 0]], "neuron": [5]},
    "strip_rough": {**TEBD, "tebd_input_mode": "strip", "smooth": False, "model": {"pair_exclude_types": [[0, 1]]}},
    "strip_many": {**TEBD, "elements": MANY, "tebd_input_mode": "strip", "smooth": True},
    "parameters": {**TEBD, "fitting": {"numb_fparam": 1, "numb_aparam": 2}},
}  # fmt: skip


def made(name, **more):
    keys = {"elements": ("Cu", "Al"), **COMBINATIONS[name], **more}
    return keys.pop("elements"), keys


def frames_of(elements):
    """A crystal of three of the elements or fewer, and a cluster."""
    there = [e for e in elements if e != "X"][-3:]
    return alloy(there), Atoms(there[:1] * 4, [[0, 0, 0], [1.9, 0, 0], [0, 2.2, 0.3], [1.5, 1.4, 1.2]])


@pytest.mark.parametrize("name", COMBINATIONS)
def test_splines_are_the_nets(name):
    elements, keys = made(name)
    potential = potential_of(elements, **keys)
    system = system_of(potential, *frames_of(elements))
    random = np.random.default_rng(0)
    fparam, aparam = None, None
    if "fitting" in keys:
        fparam, aparam = torch.tensor([[0.3], [0.7]]), torch.from_numpy(random.normal(size=(system.atoms, 2)))
    wanted = exactly(potential).evaluate(system, None, fparam, aparam)
    for atom_virial in (False, True):
        found = potential.evaluate(system, None, fparam, aparam, atom_virial=atom_virial)
        assert_close(found, wanted, SPLINES)
    single = copy.deepcopy(
        potential
    ).float()  # with the same knots; test_answers_are_deepmd_kits chooses them anew
    assert isinstance(single.evaluator(), Splines)
    assert_close(single.evaluate(system, None, fparam, aparam), wanted, FLOAT32)


@pytest.mark.parametrize("name", ["se_e3_pairs", "concat_many", "strip", "strip_rough"])
def test_forces_and_virials_are_slopes(name):
    elements, keys = made(name)
    potential = potential_of(elements, **keys)
    atoms, step = frames_of(elements)[0], 1e-4
    found = potential.compute(atoms)
    random = np.random.default_rng(0)
    direction, strain = random.standard_normal((len(atoms), 3)), random.standard_normal((3, 3))

    def energy(shift, stretch):
        other = atoms.copy()
        other.positions += shift * direction
        other.set_cell(other.cell.array @ (np.eye(3) + stretch * strain), scale_atoms=True)
        return potential.compute(other)["energy"].item()

    slope = (energy(step, 0) - energy(-step, 0)) / (2 * step)
    assert slope == pytest.approx(-(found["forces"] * direction).sum(), rel=1e-6, abs=1e-8)
    slope = (energy(0, step) - energy(0, -step)) / (2 * step)
    assert slope == pytest.approx(-(found["virial"] * strain.T).sum(), rel=1e-6, abs=1e-8)


def test_overflow_drops_the_farthest():
    for keys in (SE_E3, TEBD):
        few = {**keys, "sel": [11, 7] if keys is SE_E3 else 14}
        potential = potential_of(("Cu", "Al"), overflow="truncate", **few)
        system = system_of(potential, alloy())
        with torch.no_grad():
            near = potential.neighbor_list(system)
        assert (near.counts.sum(1) > 17).any()
        assert_close(potential.evaluate(system), exactly(potential).evaluate(system), SPLINES)


def test_a_list_with_a_skin_changes_nothing():
    potential = potential_of(("Cu", "Al"), **TEBD)
    system = system_of(potential, alloy())
    wider = mdops.ops.neighbor_list(
        system.positions, system.cell, system.pbc, system.types, 5.0, batch=system.batch, ntypes=2
    )
    assert_close(potential.evaluate(system, wider), potential.evaluate(system), 1e-13)


def test_nearer_than_the_knots_energies_go_on_smoothly():
    potential = potential_of(("Cu", "Al"), **SE_E3)
    potential.use_spline(r_min=2.0)
    energies, forces = [], []
    with pytest.warns(UserWarning, match="nearer than 2 A"):
        for r in (1.0, 1.0 + 1e-5, 1.0 - 1e-5):
            found = potential.compute(Atoms("CuAl", [[0, 0, 0], [r, 0, 0]]))
            energies.append(found["energy"].item()), forces.append(found["forces"][1, 0])
    assert forces[0] == pytest.approx(-(energies[1] - energies[2]) / 2e-5, rel=1e-5)
    wanted = exactly(potential).compute(Atoms("CuAl", [[0, 0, 0], [1.0, 0, 0]]))["forces"][1, 0]
    assert abs(forces[0] - wanted) > 1e-6 * abs(wanted)


def test_without_room_for_tables_the_nets_run():
    potential = potential_of(("Cu", "Al"), **SE_E3)
    system = system_of(potential, alloy())
    wanted = exactly(potential).evaluate(system)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(angles, "_MOST_NUMBERS", 0)
        assert_close(potential.evaluate(system), wanted, 1e-13)


def test_tables_follow_the_weights(monkeypatch):
    potential = potential_of(("Cu", "Al"), **TEBD)
    system = system_of(potential, alloy())
    before = potential.evaluate(system)["forces"]
    made, coefficients = [], angles.AngleDescriptor.coefficients
    monkeypatch.setattr(
        angles.AngleDescriptor, "coefficients", lambda *of: made.append(of) or coefficients(*of)
    )
    potential.evaluate(system)
    assert not made
    with torch.no_grad():
        potential.model.descriptor.embeddings.net().layers[0].weight.mul_(1.1)
    after = potential.evaluate(system)
    assert relative_error(after["forces"], before) > 1e-3
    assert_close(after, exactly(potential).evaluate(system), SPLINES)
    potential.evaluate(system)
    assert len(made) == 1
    copy.deepcopy(potential).evaluate(system)
    assert len(made) == 2  # copies do without


def test_tables_that_a_graph_reads_stay_when_weights_change(monkeypatch):
    potential, tables = potential_of(("Cu", "Al"), **SE_E3), []
    system, features = system_of(potential, alloy()), angles.angle_features

    def noted(*args, **options):
        tables.append(weakref.ref(args[4]._base))
        return features(*args, **options)

    monkeypatch.setattr(angles, "angle_features", noted)
    for recorded in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(watch, "is_recorded", lambda at, recorded=recorded: recorded)
            potential.evaluate(system)
    with torch.no_grad():
        for _ in range(2):
            for weight in potential.model.descriptor.parameters():
                weight.mul_(1.1)
            potential.evaluate(system)
    held, again, changed, last = (table() for table in tables)
    assert held is again is not None and changed is None and last is not None


def test_small_angles_keep_their_digits_in_float32():
    """One polynomial follows a net without an activation from end to end; its places on a piece that wide would not be
    those of small angles."""
    potential = potential_of(("Cu", "Al"), **TEBD, activation_function="none")
    system = system_of(potential, alloy())
    wanted = exactly(potential).evaluate(system)
    assert_close(potential.float().evaluate(system), wanted, 3e-6, ("forces",))


def test_nets_with_kinks_run_themselves():
    model = model_of(("Cu", "Al"), **SE_E3, activation_function="relu")
    potential = Potential(model).eval()
    with pytest.warns(UserWarning, match="kinks: they are evaluated exactly"):
        potential.use_spline()
    assert type(potential.evaluator()) is Autograd and "kinks" in potential.explain()
    assert potential.splines() is None


def test_angles_go_by_splines_beside_nets_that_splines_do_not_follow():
    """And say how near neighbours may come, which is not said by parts that run themselves."""
    sums = {**parts_cases.A, "activation_function": "relu"}
    potential = Potential(parts_cases.model_of(parts_cases.hybrid(sums, parts_cases.T))).eval()
    with pytest.warns(UserWarning, match="kinks: they are evaluated exactly"):
        potential.use_spline()
    assert (
        isinstance(potential.evaluator(), Splines) and "(se_e3: splines of the angle)" in potential.explain()
    )
    system = system_of(potential, alloy())
    assert_close(potential.evaluate(system), exactly(potential).evaluate(system), SPLINES)
    assert "splines of the angle" not in exactly(potential).explain()
    potential.angle_knots = [choose_angle_knots(potential.model.descriptors[1], 2.6, 1e-8)]
    with pytest.warns(UserWarning, match=r"nearer than 2\.6 A"):
        potential.evaluate(system)


# -- Training


@pytest.mark.parametrize("name", ["se_e3", "concat", "concat_many", "strip", "strip_rough"])
def test_gradients_of_the_weights_are_the_nets(name):
    """Of a loss on energies, forces and virials."""
    elements, keys = made(name)
    potential = potential_of(elements, **keys)
    system = system_of(potential, *frames_of(elements))
    gradients = []
    for one in (potential, exactly(potential)):
        one.train()
        answers = one.predict(system, one.neighbor_list(system))
        loss = answers["energy"].sum() + answers["forces"].pow(2).sum() + 0.1 * answers["virial"].pow(2).sum()
        names, weights = zip(*one.named_parameters(), strict=True)
        gradients.append(torch.autograd.grad(loss, weights, allow_unused=True))
    assert isinstance(potential.evaluator("train"), Splines)
    for label, found, wanted in zip(names, *gradients, strict=True):
        assert (found is None) == (wanted is None), label
        if found is not None:
            assert relative_error(found, wanted) < 1e-6, label


def test_second_derivatives_by_positions():
    for keys in (SE_E3, {**TEBD, "tebd_input_mode": "strip", "smooth": True}):
        potential = potential_of(("Cu", "Al"), **keys)
        atoms = frames_of(("Cu", "Al"))[1]
        types = torch.tensor([0, 1, 0, 1])

        def energy(x, potential=potential, types=types):
            return potential(x, types)["energy"]

        x = torch.from_numpy(atoms.positions).requires_grad_()
        assert torch.autograd.gradcheck(energy, x, atol=1e-8)
        assert torch.autograd.gradgradcheck(energy, x, atol=1e-7, fast_mode=True)


# -- On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", COMBINATIONS)
def test_gpu(name):
    elements, keys = made(name)
    if "fitting" in keys:
        pytest.skip("its parameters are the CPU's matter")
    for dtype, limit in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        potential = potential_of(elements, dtype=dtype, **keys)
        system = system_of(potential, *frames_of(elements))
        wanted = potential.evaluate(system)
        there = copy.deepcopy(potential).cuda()
        assert_close(there.evaluate(on_device(system, "cuda")), wanted, limit)


@pytest.mark.parametrize("keys", [SE_E3, TEBD], ids=["se_e3", "se_e3_tebd"])
def test_weights_that_change_through_an_alias_are_seen(keys):
    potential = potential_of(("Cu", "Al"), **keys)
    system = system_of(potential, alloy())
    before = potential.evaluate(system)["energy"]
    for weight in potential.model.descriptors[0].parameters():
        weight.data += 0.01
    after = potential.evaluate(system)
    assert abs(after["energy"] - before) > 1e-6
    assert_close(after, copy.deepcopy(potential).evaluate(system), 1e-13)


@pytest.mark.parametrize("keys", [SE_E3, TEBD], ids=["se_e3", "se_e3_tebd"])
def test_nets_run_where_no_pieces_reach(keys):
    """The ops take so many octaves: the angle of a neighbour at 1e-9 A and itself is beyond them."""
    potential = potential_of(("Cu", "Al"), **keys)
    with pytest.warns(UserWarning, match="do not reach down to 1e-09 A: they are evaluated exactly"):
        potential.use_spline(r_min=1e-9)
    assert potential.angle_knots == (None,)
    system = system_of(potential, alloy())
    assert_close(potential.evaluate(system), exactly(potential).evaluate(system), 1e-13)


def test_what_is_said():
    potential = potential_of(("Cu", "Al"), **SE_E3)
    (knots,) = potential.angle_knots
    assert potential.splines() == f"splines of {knots.intervals} of angles intervals beyond 0.5 A"
    potential.use_spline(r_min=1.0)
    assert potential.r_min == 1.0 and potential.spline_error() <= 1e-8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "splines of the angle" in potential.explain()
    assert exactly(potential).r_min is None and "spline=False" in exactly(potential).explain()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["se_e3", "se_e3_tebd"])
def test_engine_steps_are_captured(name, replays):
    elements, keys = ("Cu", "Al"), {"se_e3": SE_E3, "se_e3_tebd": TEBD}[name]
    keys |= {"overflow": "extend"}
    double, gpu = (potential_of(elements, dtype=dtype, **keys) for dtype in (torch.float64, torch.float32))
    atoms = frames_of(elements)[0]
    engine = Engine(atoms, gpu.cuda(), EnsembleSettings("nve", 300, 1))
    frame = list(engine.run(8, every=4))[-1]
    assert replays, gpu.explain()
    wanted = double.compute(frame.atoms(atoms))
    assert relative_error(torch.from_numpy(frame.forces), torch.from_numpy(wanted["forces"])) < 1e-4
