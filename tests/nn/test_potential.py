"""What any potential must satisfy, and how `forward`, `evaluate` and `compute` agree."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from reference_cases import DATA, build, model_path, references, relative_error
from torch_reference import evaluate as dense
from trees import differences

from mdops import load
from mdops.evaluators.spline_sum import SplineSum
from mdops.io import read_model
from mdops.models import Neighborhood
from mdops.nn import net
from mdops.ops import mlp_value_and_gradient, neighbor_list
from mdops.system import System
from mdops.tables.spline_model import SplineModel

WAYS = [{"spline": False}, {"spline": True}]


@pytest.fixture(params=WAYS, ids=["exact", "spline"])
def potential(request):
    return load(model_path("two_side"), dtype="float64", **request.param)


def crystal(seed=0):
    """A random alloy of 16 atoms in a triclinic cell, known to every two-type model here."""
    rng = np.random.default_rng(seed)
    atoms = bulk("Cu", cubic=True, a=3.9) * (2, 2, 1)
    atoms.set_cell(atoms.cell.array + rng.normal(scale=0.2, size=(3, 3)), scale_atoms=True)
    atoms.symbols[rng.permutation(16)[:7]] = "Al"
    atoms.rattle(0.1, seed=seed)
    return atoms


def molecule():
    return Atoms("CuAlAl", positions=[[0, 0, 0], [1.9, 0.2, 0], [-0.3, 2.1, 0.4]])


def tensors(atoms):
    types = torch.tensor([{"Cu": 0, "Al": 1, "X": -1}[s] for s in atoms.symbols])
    cell = torch.tensor(atoms.cell.array) if atoms.pbc.any() else None
    return torch.tensor(atoms.positions), types, cell, torch.tensor(atoms.pbc)


def assert_same(a, b, tolerance=1e-11):
    for name in a:
        assert relative_error(torch.as_tensor(a[name]), torch.as_tensor(b[name])) < tolerance, name


def test_attributes(potential):
    assert potential.type_map == ["Cu", "Al"]
    assert potential.cutoff == 3.8
    assert potential.sel == [18, 16]
    assert potential.dtype == torch.float64
    assert not potential.training


def test_compute_gives_numpy_arrays_of_a_batch(potential):
    result = potential.compute([crystal(), molecule()], atom_virial=True)
    shapes = {
        "energy": (2,),
        "forces": (19, 3),
        "virial": (2, 3, 3),
        "atom_energy": (19,),
        "atom_virial": (19, 3, 3),
    }
    assert {name: value.shape for name, value in result.items()} == shapes
    assert all(isinstance(value, np.ndarray) and value.dtype == np.float64 for value in result.values())


def test_a_batch_equals_its_systems(potential):
    frames = [crystal(1), molecule(), crystal(2)]
    together, alone = potential.compute(frames), [potential.compute(atoms) for atoms in frames]
    assert_same(together, {name: np.concatenate([one[name] for one in alone]) for name in together})


def test_atoms_of_a_batch_may_be_mixed(potential):
    a, b = tensors(crystal(1)), tensors(crystal(2))
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    result = potential(
        torch.cat([a[0], b[0]])[order],
        torch.cat([a[1], b[1]])[order],
        torch.stack([a[2], b[2]]),
        batch=torch.arange(2).repeat_interleave(16)[order],
        forces=True,
    )
    wanted = potential.compute([crystal(1), crystal(2)])
    assert_same({k: result[k].detach() for k in ("energy", "virial")}, wanted)
    assert relative_error(result["forces"], torch.as_tensor(wanted["forces"])[order]) < 1e-11


def test_permutation_moves_forces_and_keeps_the_energy(potential):
    atoms, order = crystal(), np.random.default_rng(3).permutation(16)
    one, other = potential.compute(atoms), potential.compute(atoms[order])
    assert_same({"energy": one["energy"], "forces": one["forces"][order]}, other)


def test_rotation_turns_forces_and_virial(potential):
    atoms = crystal()
    turn = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0]
    turned = Atoms(atoms.symbols, atoms.positions @ turn, cell=atoms.cell.array @ turn, pbc=True)
    one, other = potential.compute(atoms), potential.compute(turned)
    rotated = {
        "energy": one["energy"],
        "forces": one["forces"] @ turn,
        "virial": turn.T @ one["virial"] @ turn,
    }
    assert_same(rotated, other)


def test_wrapping_atoms_into_the_cell_changes_nothing(potential):
    atoms = crystal()
    moved = atoms.copy()
    moved.positions += np.random.default_rng(5).integers(-3, 4, (16, 3)) @ atoms.cell.array
    assert_same(potential.compute(atoms), potential.compute(moved), 1e-9)


@pytest.mark.parametrize("pbc", list(np.ndindex(2, 2, 2)), ids=str)
def test_each_choice_of_periodic_directions(potential, pbc):
    """Directions without period equal a slab with so much room that no images meet."""
    atoms, room = crystal(), crystal()
    atoms.pbc = pbc
    cell = room.cell.array.copy()
    for k in range(3):
        if not pbc[k]:
            cell[k] *= 8
    room.cell = cell
    one, other = potential.compute(atoms), potential.compute(room)
    assert_same({k: one[k] for k in ("energy", "forces", "virial")}, other)


def test_forward_equals_compute(potential):
    atoms = crystal()
    result = potential(*tensors(atoms), forces=True)
    assert_same({name: value.detach() for name, value in result.items()}, potential.compute(atoms))


def test_forces_are_the_gradient_of_the_energy(potential):
    positions, types, cell, pbc = tensors(crystal())
    positions.requires_grad_()
    strain = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    deformation = torch.eye(3) + strain
    energy = potential(positions @ deformation, types, cell @ deformation, pbc)["energy"].sum()
    gradient, virial = torch.autograd.grad(energy, [positions, strain])
    wanted = potential.compute(crystal())
    assert_same({"forces": -gradient, "virial": -virial[None]}, wanted)


def test_forces_and_virial_by_finite_differences(potential):
    atoms, h = crystal(), 1e-4
    result = potential.compute(atoms)

    def energy(strain=None, atom=0, step=(0, 0, 0)):
        changed = atoms.copy()
        changed.positions[atom] += step
        if strain is not None:
            changed.set_cell(changed.cell.array @ (np.eye(3) + strain), scale_atoms=True)
        return potential.compute(changed)["energy"][0]

    for a, b in ((0, 0), (1, 2), (2, 1)):
        strain = np.zeros((3, 3))
        strain[a, b] = h
        slope = (energy(strain) - energy(-strain)) / (2 * h)
        assert slope == pytest.approx(-result["virial"][0, a, b], rel=1e-5, abs=1e-6)
        step = np.eye(3)[b] * h
        slope = (energy(atom=a, step=step) - energy(atom=a, step=-step)) / (2 * h)
        assert slope == pytest.approx(-result["forces"][a, b], rel=1e-5, abs=1e-6)


def test_a_loss_on_forces_reaches_positions_and_weights(potential):
    """The gradient of a function of the forces, against finite differences of it."""
    positions, types, cell, pbc = tensors(crystal())
    weight = potential.model.descriptor.net(0, 1).layers[0].weight
    direction = torch.randn(16, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def loss(x):
        result = potential(x, types, cell, pbc, forces=True, create_graph=True)
        return (result["forces"] * direction).sum() + result["virial"].square().sum()

    x = positions.clone().requires_grad_()
    by_position, by_weight = torch.autograd.grad(loss(x), [x, weight])
    h = 1e-5
    shift = h * direction.flip(0)
    slope = (loss(positions + shift) - loss(positions - shift)) / (2 * h)
    assert (by_position * direction.flip(0)).sum().item() == pytest.approx(slope.item(), rel=1e-6, abs=1e-8)
    with torch.no_grad():
        values = []
        for sign in (1, -1):
            weight[0, 1] += sign * h
            with torch.enable_grad():
                values.append(loss(positions).item())
            weight[0, 1] -= sign * h
    assert by_weight[0, 1].item() == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-6, abs=1e-8)


def test_changed_weights_are_seen_at_once(potential):
    before = potential.compute(crystal())["energy"]
    with torch.no_grad():
        potential.model.descriptor.net(0, 0).layers[0].bias += 0.1
    after = potential.compute(crystal())["energy"]
    assert after != before
    assert after == pytest.approx(potential(*tensors(crystal()))["energy"].detach().numpy(), rel=1e-9)


def test_a_list_with_skin_gives_the_same(potential):
    positions, types, cell, pbc = tensors(crystal())
    longer = neighbor_list(positions, cell, pbc, types.int(), potential.cutoff + 1.5, ntypes=2)
    with_skin = potential(positions, types, cell, pbc, neighbors=longer, forces=True)
    assert_same(with_skin, potential(positions, types, cell, pbc, forces=True))


def test_a_single_atom_has_its_own_energy(potential):
    tree = read_model(model_path("two_side")).model
    for kind, symbol in enumerate(potential.type_map):
        result = potential.compute(Atoms(symbol, positions=[[0.3, 0, 0]]))
        wanted = dense(tree, torch.zeros(1, 3), torch.tensor([kind]))["energy"]
        assert result["energy"][0] == pytest.approx(wanted.item(), rel=1e-9)
        assert not result["forces"].any()
        assert not result["virial"].any()


def test_an_empty_system_has_no_energy(potential):
    result = potential.compute([Atoms(), molecule(), Atoms(cell=np.eye(3) * 5, pbc=True)])
    assert result["energy"][[0, 2]].tolist() == [0, 0]
    assert not result["virial"][[0, 2]].any()
    alone = potential.compute(Atoms())
    assert alone["energy"].tolist() == [0]
    assert alone["forces"].shape == (0, 3)
    assert potential(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), forces=True)[
        "energy"
    ].tolist() == [0]


def test_virtual_atoms_are_nobody(potential):
    atoms = crystal()
    atoms.symbols[[2, 9]] = "X"
    real = atoms[[i for i in range(16) if i not in (2, 9)]]
    one, other = potential.compute(atoms), potential.compute(real)
    assert not one["forces"][[2, 9]].any()
    assert not one["atom_energy"][[2, 9]].any()
    assert_same({k: one[k] for k in ("energy", "virial")}, other)


@pytest.mark.parametrize("way", WAYS, ids=["exact", "spline"])
def test_extend_keeps_all_neighbours(way):
    """As a model with more places, but N_sel and the padding that it has: the padding is negative then."""
    atoms = bulk("Cu", cubic=True, a=3.3) * (2, 2, 2)
    atoms.rattle(0.05, seed=1)
    extended = load(model_path("overflow"), dtype="float64", overflow="extend", **way)
    tree = read_model(model_path("overflow")).model
    wide = build(_with_places(tree, [40, 40]), dtype=torch.float64)
    if way["spline"]:
        wide.use_spline()
    positions, types, cell, pbc = tensors(atoms)
    types = types.int()
    pairs = neighbor_list(positions, cell, pbc, types, extended.cutoff, ntypes=2)

    system = System(positions, types, cell[None], pbc[None], torch.zeros(len(types), dtype=torch.int32))
    near = Neighborhood.of(system, pairs, extended.cutoff, torch.float64)

    def summed(potential):
        """N_sel T"""
        descriptor = potential.model.descriptor
        if potential.grid is None:
            return descriptor.moments(near) * descriptor.slots
        tables = SplineModel(potential).sums[0]
        return SplineSum(tables).summed(tables.table(), near) * descriptor.slots

    more = torch.tensor(wide.sel) - torch.tensor(extended.sel)
    padding = wide.model.descriptor.padding(more.expand(len(types), -1), types) * wide.model.descriptor.slots
    torch.testing.assert_close(
        summed(extended).detach(), (summed(wide) - padding).detach(), rtol=1e-8, atol=1e-8
    )


def _with_places(tree, sel):
    """The tree with other `sel`."""
    descriptor = dict(tree["descriptor"], sel=sel)
    statistics = descriptor["@variables"]
    descriptor["@variables"] = {k: np.repeat(v[:, :1], sum(sel), axis=1) for k, v in statistics.items()}
    return dict(tree, descriptor=descriptor)


def changed(potential):
    """The potential with other weights and other statistics: no copy of what was read passes for it."""
    with torch.no_grad():
        for value in potential.state_dict().values():
            if value.is_floating_point():
                value.mul_(1.01)
    return potential


@pytest.mark.parametrize(
    "case", ["base", "two_side", "fparam_aparam", "atom_ener", "exclude_types", "float32"]
)
def test_saved_models_come_back_the_same(case, tmp_path):
    potential = changed(load(model_path(case), dtype="float64", spline=False))
    potential.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", dtype="float64", spline=False)
    unchanged = load(model_path(case), dtype="float64", spline=False)
    rtol = 1e-5 if case == "float32" else 0  # the file has its weights in float32
    for reference in references(DATA / case):
        arguments = (reference.system, None, reference.fparam, reference.aparam)
        one, other = potential.evaluate(*arguments), again.evaluate(*arguments)
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=rtol, atol=rtol)
        assert (one["energy"] != unchanged.evaluate(*arguments)["energy"]).all()


def test_serialize_gives_back_the_tree():
    tree = read_model(model_path("fparam_aparam")).model
    again = build(tree).model.to_tree()
    del tree["fitting"]["@variables"]["default_fparam_tensor"]  # the option default_fparam once more
    trained = tree["fitting"].pop("trainable")  # of each layer
    assert set(trained) == {again["fitting"].pop("trainable")}
    assert not differences(tree, again)


def test_serialize_has_the_numbers_of_the_modules():
    """Weights and statistics that changed after the tree was read."""
    tree = read_model(model_path("fparam_aparam")).model
    before, potential = build(tree).state_dict(), changed(build(tree))
    again = build(potential.model.to_tree()).state_dict()
    assert again.keys() == before.keys()
    for name, value in potential.state_dict().items():
        assert torch.equal(again[name], value), name
        assert not value.is_floating_point() or not value.any() or not torch.equal(value, before[name]), name


def test_trained_weights_are_saved(tmp_path):
    potential = load(model_path("base"), dtype="float64")
    with torch.no_grad():
        for parameter in potential.parameters():
            parameter += 0.01
    potential.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", dtype="float64")
    assert_same(potential.compute(crystal()), again.compute(crystal()), 1e-8)
    assert (
        potential.compute(crystal())["energy"]
        != load(model_path("base"), dtype="float64").compute(crystal())["energy"]
    )


@pytest.mark.parametrize("way", WAYS, ids=["exact", "spline"])
def test_every_option_together(way):
    """A combination that no file has, against the dense reference."""
    tree = read_model(model_path("two_side")).model
    tree["pair_exclude_types"], tree["atom_exclude_types"] = [[1, 1]], [0]
    tree["descriptor"]["exclude_types"] = [[0, 1], [1, 1]]
    tree["descriptor"]["env_protection"] = 0.05
    tree["fitting"]["atom_ener"] = [None, 1.0]
    potential = build(tree)
    if way["spline"]:
        potential.use_spline()
    atoms = crystal()
    wanted = dense(tree, *tensors(atoms)[:3])
    result = potential.compute(atoms)
    assert_same(
        {"energy": result["energy"][0], "forces": result["forces"], "virial": result["virial"][0]},
        wanted,
        1e-7,
    )


@pytest.mark.parametrize(
    "case", ["base", "fitting_resnet_dt", "widths", "fparam_aparam", "atom_ener", "activation_gelu"]
)
def test_the_nets_of_an_evaluation_are_one_op_and_those_of_a_graph_are_not(case, monkeypatch):
    """Value and gradient in one pass, where nothing but forces is asked for; the same numbers as by PyTorch."""
    calls = []

    def counted(*args, **kwargs):
        calls.append(args[0].shape)
        return mlp_value_and_gradient(*args, **kwargs)

    monkeypatch.setattr(net, "mlp_value_and_gradient", counted)
    model = load(model_path(case), dtype="float64", spline=False)
    one = references(model_path(case).parent)[0]
    found = model.evaluate(one.system, None, one.fparam, one.aparam)
    assert calls
    calls.clear()
    inputs = (one.system.positions, one.system.types, one.system.cell, one.system.pbc, one.system.batch)
    graph = model(*inputs, fparam=one.fparam, aparam=one.aparam, forces=True, create_graph=True)
    assert not calls and graph["forces"].requires_grad
    for name in ("atom_energy", "forces", "virial"):
        assert relative_error(found[name], graph[name].detach()) < 1e-13


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "is_op"), [("float32", True), ("float64", False)])
def test_on_a_gpu_the_nets_of_an_evaluation_are_one_op_in_float32(dtype, is_op, monkeypatch):
    calls = []

    def counted(*args, **kwargs):
        calls.append(args[0].shape)
        return mlp_value_and_gradient(*args, **kwargs)

    monkeypatch.setattr(net, "mlp_value_and_gradient", counted)
    model = load(model_path("base"), dtype=dtype, spline=False, device="cuda")
    of_cpu = references(model_path("base").parent)[0].system
    inputs = [getattr(of_cpu, name).cuda() for name in ("positions", "types", "cell", "pbc", "batch")]
    found = model.evaluate(System(*inputs))
    assert bool(calls) == is_op
    graph = model(*inputs, forces=True, create_graph=True)
    for name in ("atom_energy", "forces", "virial"):
        assert relative_error(found[name], graph[name].detach()) < (1e-5 if is_op else 1e-13)
