"""DPA-4 (SeZM), against DeePMD-kit and in use."""

import math
import threading

import kind_cases as kinds
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from reference_cases import on_device, references, relative_error, virials_of_energies
from small_systems import EMT

import mdops
from mdops.errors import ConfigError, InputError, ModelFileError
from mdops.io.torch.adapters import with_adapters
from mdops.io.torch.descriptors import descriptor_tree
from mdops.io.torch.state import State
from mdops.io.upgrade import upgrade
from mdops.md import Engine, EnsembleSettings
from mdops.models import model_of_tree
from mdops.models.dpa4 import convolution
from mdops.models.dpa4.descriptor import DPA4
from mdops.models.dpa4.once import BlockOnce
from mdops.models.graph import Room, run_again, run_counted
from mdops.nn.net import input_gradient_alone, is_input_gradient_alone
from mdops.system import from_atoms
from mdops.train import PairLists, load_dataset
from mdops.train.config.read import parse_config
from mdops.train.model.random import random_potential

INPUT = {
    "type": "dpa4",
    "rcut": 3.5,
    "channels": 5,
    "n_radial": 5,
    "lmax": 1,
    "n_blocks": 1,
    "mixing_layers": 2,
    "edge_norm": False,
    "precision": "float64",
    "seed": 1,
}


class TestDPA4(kinds.DescriptorTests):
    CASES = kinds.cases("dpa4_")
    DIFFERENTIATED = ("dpa4_base", "dpa4_wide", "dpa4_bridged")
    INPUT = INPUT
    STEPS = 30
    TRAINED = "dpa4", 2, None


@pytest.mark.parametrize("case", ["dpa4_mini", "dpa4_l3"])
@pytest.mark.parametrize("ending", ["dp", "pt"])
def test_larger_models_of_deepmd_kit(case, ending):
    kinds.check_larger(case, ending=ending)


@pytest.mark.parametrize("case", ["dpa4_base", "dpa4_wide", "dpa4_matrices", "dpa4_deep", "dpa4_blocks"])
def test_turns_and_other_orders_change_nothing(case):
    potential, atoms = kinds.load_case(case), kinds.alloy()
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))
    turn[0] *= np.linalg.det(turn)
    order = np.random.default_rng(1).permutation(len(atoms))
    moved = atoms[order]
    moved.set_cell(atoms.cell.array @ turn.T)
    moved.positions = atoms.positions[order] @ turn.T
    aparam = np.random.default_rng(2).normal(size=(len(atoms), 2))
    given = [{"fparam": np.ones((1, 1)), "aparam": own} for own in (aparam, aparam[order])]
    first, second = given if case == "dpa4_blocks" else ({}, {})
    wanted, found = potential.compute([atoms], **first), potential.compute([moved], **second)
    largest = np.abs(wanted["forces"]).max()
    np.testing.assert_allclose(found["energy"], wanted["energy"], rtol=1e-12)
    np.testing.assert_allclose(found["forces"], (wanted["forces"] @ turn.T)[order], atol=1e-10 * largest)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", kinds.cases("dpa4_"))
def test_edges_in_runs_have_the_same_answers(case, device, monkeypatch):
    """No run, some or all of which keep what the gradient needs."""
    potential = kinds.load_case(case).to(device)
    calls = []
    for one in references(kinds.KINDS / case):
        more = (given if given is None else given.to(device) for given in (one.fparam, one.aparam))
        calls.append((on_device(one.system, device), None, *more))
    wanted = [potential.evaluate(*call) for call in calls]
    monkeypatch.setattr("mdops.models.graph.MANY_ATOMS", 1)
    monkeypatch.setattr("mdops.models.graph.device_memory", lambda device: 0)
    monkeypatch.setattr(DPA4, "_edges_at_once", lambda *_: 37)
    for memory in (0, 10**7, 10**12):
        monkeypatch.setattr("mdops.models.dpa4.descriptor.device_memory", lambda device, room=memory: room)
        for call, want in zip(calls, wanted, strict=True):
            found = potential.evaluate(*call)
            for name, value in want.items():
                assert relative_error(found[name].cpu(), value.cpu()) < 1e-11, (memory, name)


def test_descriptors_are_what_the_fitting_reads():
    potential = kinds.load_case("dpa4_base")
    one, read = references(kinds.KINDS / "dpa4_base")[0], []
    potential.model.fitting.register_forward_pre_hook(lambda _, given: read.append(given[0].detach()))
    potential.predict(one.system, potential.neighbor_list(one.system))
    torch.testing.assert_close(potential.descriptors(one.system), read[0], rtol=1e-12, atol=1e-14)


def test_what_finds_no_room_runs_again():
    calls = []

    def twice(x):
        calls.append(len(x))
        return x.exp().exp()

    def gradient(room, rows):
        calls.clear()
        x = torch.ones(rows, 4, dtype=torch.float64, requires_grad=True)
        y = room.run(twice, x) if rows == 10 else room.by_rows(twice, x, size=3)
        (found,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(found, torch.full_like(found, math.e ** (1 + math.e)))
        return list(calls), room.left

    row = 2 * 4 * 8  # bytes: both results of exp
    assert gradient(Room(0), 10) == ([10, 10], 0)
    assert gradient(Room(1), 10) == ([10], 1 - 10 * row)
    assert gradient(Room(11 * row), 11) == ([3, 8], 0)
    assert gradient(Room(5 * row), 11) == ([3, 3, 3, 2, 2, 3], -row)
    assert gradient(Room(0), 5) == ([3, 2, 2, 3], 0)


def test_what_runs_again_in_another_thread_does_the_same():
    """As the derivatives of a GPU do, whose thread has no context variables of those who call."""
    seen = []

    def function(x):
        seen.append(is_input_gradient_alone())
        return x.exp()

    x = torch.ones(3, requires_grad=True)
    with input_gradient_alone():
        y = run_again(function, x)
    thread = threading.Thread(target=y.sum().backward)
    thread.start()
    thread.join()
    torch.testing.assert_close(x.grad, x.detach().exp())
    assert seen == [True, True]


def test_large_graphs_go_in_runs(monkeypatch):
    descriptor = kinds.load_case("dpa4_base").model.descriptor
    vectors = torch.zeros(10**6, 3, dtype=torch.float64)
    sizes = []
    for memory in (1 << 50, 1 << 31, 1 << 30):
        monkeypatch.setattr(
            "mdops.models.dpa4.descriptor.device_memory", lambda device, memory=memory: memory
        )
        sizes.append(descriptor._edges_at_once(vectors, 10**4))
    assert sizes[0] == 10**6 and 1000 < sizes[1] < 10**6 and sizes[2] == sizes[1] // 2


@pytest.mark.parametrize(
    "options",
    [
        {"mmax": 2},
        {"mlp_bias": True},
        {"so2_norm": True},
        {"s2_activation": [True, True]},
        {"n_focus": 2},
        {"n_focus": 6},
        {"n_atten_head": 4},
        {"radial_so2_mode": "none"},
        {"radial_so2_rank": 0},
        {"lmax": 3, "n_focus": 2, "grid_branch": 1, "ffn_blocks": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_step_keeps_no_more_than_is_expected(dtype, device, options, monkeypatch):
    """What decides if edges go in runs."""
    usual = {"channels": 16, "lmax": 2, "radial_so2_mode": "degree_channel", "radial_so2_rank": 1}
    potential, expected = kinds.new_potential({**INPUT, **usual, **options}), []

    def edges_at_once(descriptor, vectors, atoms):
        expected.append(descriptor._kept(vectors, atoms)[0])
        return len(vectors)

    monkeypatch.setattr(DPA4, "_edges_at_once", edges_at_once)
    potential.use_spline()
    potential.to(device).to(dtype)
    kept, _ = run_counted(potential.compute, kinds.alloy().repeat(2))
    weights = sum(weight.nbytes for weight in potential.parameters())
    assert expected[0] / 3 < kept < expected[0] + weights


def test_atoms_far_from_all_others_and_none_have_answers():
    potential, atoms = kinds.load_case("dpa4_blocks"), kinds.alloy()[:2]
    atoms.set_cell(None)
    atoms.pbc = False
    atoms.positions[1] += 50
    found = potential.compute([atoms], fparam=np.ones((1, 1)), aparam=np.ones((2, 2)))
    assert np.isfinite(found["energy"]).all() and (found["forces"] == 0).all()


@pytest.mark.parametrize(
    "options", [{"mmax": 2, "n_atten_head": 5}, {"mmax": 1, "ffn_so3_grid": True}], ids=str
)
def test_functions_on_grids_take_no_edges_and_no_atoms(options):
    section = {"lmax": 3, "radial_so2_mode": "degree_channel", "radial_so2_rank": 1, "message_node_so3": True}
    potential = kinds.new_potential({**INPUT, **section, **options})
    one, none = kinds.alloy()[:1], kinds.alloy()[:0]
    one.set_cell([40.0, 40.0, 40.0])
    single = potential.compute(one)["energy"]
    found = potential.compute([one, none, one * (2, 1, 1)])
    np.testing.assert_allclose(found["energy"], [*single, 0.0, *(2 * single)], rtol=1e-12)
    assert single != 0 and (found["forces"] == 0).all()
    assert potential.compute(none)["forces"].shape == (0, 3)


def test_near_atoms_of_its_splines_need_the_nets():
    """`r_min` chooses knots of other splines; these begin at 0.5 A always."""
    section = {"lmax": 2, "mmax": 1, "radial_so2_mode": "degree_channel", "radial_so2_rank": 1}
    potential = kinds.new_potential(INPUT | section).eval()
    potential.use_spline(r_min=0.3)
    assert potential.evaluator().name == "radial splines"
    pair = Atoms("CuAl", [[0, 0, 0], [0.45, 0, 0]])
    advice = r"nearer than 0\.5 A.* Load the model with spline=False$"
    with pytest.warns(UserWarning, match=advice):
        potential.compute(pair)
    with pytest.warns(UserWarning, match=advice):
        list(Engine(pair, [potential, potential], EnsembleSettings("nve", timestep=0.01)).run(1))


def deepmd_input(**model):
    """As DeePMD-kit's examples: the model itself is of type dpa4, and does not name its parts."""
    descriptor = {name: value for name, value in INPUT.items() if name != "type"}
    return parse_config(
        {
            "model": {"type": "dpa4", "type_map": ["Cu", "Al"], "descriptor": descriptor, **model},
            "learning_rate": {"type": "exp", "start_lr": 1e-2, "stop_lr": 1e-4},
            "training": {"training_data": {"systems": str(EMT)}, "numb_steps": 1, "precision": "float64"},
        }
    )


def potential_of(config):
    data = load_dataset(EMT, ["Cu", "Al"])
    return random_potential(config, data, PairLists(data, config.model.cutoff), seed=3, dtype=torch.float64)


@pytest.mark.parametrize("degrees", [{"lmax": 2, "n_blocks": 2}, {"l_schedule": [2, 1]}, {"l_schedule": []}])
def test_a_checkpoint_whose_definition_leaves_the_orders_to_the_degrees(degrees):
    options = {**INPUT, **degrees, "mmax": None}
    descriptor = potential_of(deepmd_input(descriptor=options)).model.descriptor
    tree = descriptor.to_tree()
    found = descriptor_tree(options, State(tree["@variables"], np.asarray), ["Cu", "Al"])
    read = DPA4.from_tree(found, ["Cu", "Al"], torch.float64).options
    assert (read.degrees, read.orders) == (descriptor.options.degrees, descriptor.options.orders)


@pytest.mark.parametrize("ending", ["dp", "yaml", "safetensors"])
def test_a_model_of_an_input_is_the_same_once_saved(ending, tmp_path):
    bridging = {"bridging_method": "zbl", "bridging_r_inner": 1.6, "bridging_r_outer": 2.4}
    property_of = {"type": "property", "property_name": "gap", "neuron": [0, 5], "intensive": True}
    masked = {"neuron": [0, 6], "numb_aparam": 1, "use_aparam_as_mask": True}
    fittings = [{"fitting_net": own} for own in ({"neuron": [0, 6]}, masked, property_of)]
    for model in ({}, bridging, *fittings):
        potential = potential_of(deepmd_input(**model))
        potential.save(tmp_path / f"model.{ending}")
        again = mdops.load(tmp_path / f"model.{ending}", dtype="float64")
        if ending == "safetensors":  # DeePMD-kit writes some options otherwise
            assert again.model.descriptor.options == potential.model.descriptor.options
        assert again.kind == potential.kind
        found, wanted = again.compute(kinds.alloy()), potential.compute(kinds.alloy())
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


def test_near_atoms_repel_and_send_no_messages():
    potential = potential_of(deepmd_input(bridging_method="ZBL", bridging_r_inner=1.6, bridging_r_outer=2.4))
    atoms = kinds.alloy()[:2]
    atoms.set_cell(None)
    atoms.pbc = False
    energies = []
    for distance in (0.4, 0.8, 1.2):
        atoms.positions = [[0, 0, 0], [distance, 0, 0]]
        energies.append(potential.compute([atoms])["energy"].item())
    a = 0.88534 * 0.5291772109 / (29**0.23 + 13**0.23)
    terms = ((0.18175, 3.1998), (0.50986, 0.94229), (0.28022, 0.4029), (0.028171, 0.20162))

    def repulsion(r):
        return 14.3996 * 29 * 13 / r * sum(c * np.exp(-d * r / a) for c, d in terms)

    # Below the inner distance the net sees no difference.
    assert energies[0] - energies[1] == pytest.approx(repulsion(0.4) - repulsion(0.8), rel=1e-10)
    assert energies[1] - energies[2] == pytest.approx(repulsion(0.8) - repulsion(1.2), rel=1e-10)


@pytest.mark.parametrize(
    ("blocks", "seed", "reach"), [(0, True, 2), (0, False, 1), (1, True, 3), (1, False, 2)]
)
def test_near_atoms_change_energies_a_cutoff_farther(blocks, seed, reach):
    """A neighbour adds nothing if another atom is too near to it: to first features, as to messages."""
    options = {"bridging_method": "ZBL", "bridging_r_inner": 1.6, "bridging_r_outer": 2.8}
    descriptor = {**INPUT, "n_blocks": blocks, "use_env_seed": seed}
    potential = with_all_weights(potential_of(deepmd_input(descriptor=descriptor, **options)))
    assert potential.reach == reach
    atoms = kinds.alloy()[:6]
    atoms.pbc = False
    wanted = virials_of_energies(potential, atoms)
    found = potential.compute(atoms, atom_virial=True)["atom_virial"]
    np.testing.assert_allclose(found, wanted.numpy(), rtol=0, atol=1e-9 * float(wanted.abs().max()))


def test_a_model_of_fewer_types_has_the_same_answers():
    kinds.check_fewer_types("dpa4_wide")


def test_adapters_are_added_to_the_weights():
    random = np.random.default_rng(0)
    base, a, b = random.normal(size=(3, 4, 6)), random.normal(size=(3, 2, 4)), random.normal(size=(3, 6, 2))
    first, second = random.normal(size=(2, 5)), random.normal(size=(7, 2))
    given = {
        "x.weight": base,
        "x.A_by_l": a,
        "x.B_by_l": b,
        "x.lora_scaling": np.asarray(0.5),
        "y.weight_m.0": np.zeros((5, 7)),
        "y.A_m.0": first,
        "y.B_m.0": second,
        "z.bias": np.ones(3),
    }
    found = with_adapters(given)
    assert sorted(found) == ["x.weight", "y.weight_m.0", "z.bias"]
    wanted = base + 0.5 * np.stack([a[k].T @ b[k].T for k in range(3)])
    np.testing.assert_allclose(found["x.weight"], wanted, rtol=1e-14)
    np.testing.assert_allclose(found["y.weight_m.0"], first.T @ second.T, rtol=1e-14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"l_schedule": [1, 2]}, r"l_schedule: is \[1, 2\], expected degrees that never rise"),
        ({"l_schedule": [2, 1], "m_schedule": [1]}, "m_schedule"),
        ({"l_schedule": [2, 1], "m_schedule": [1, 2]}, "m_schedule"),
        ({"kmax": 3}, r"kmax: is 3, expected the degree, 1, or less"),
        ({"n_atten_head": 4}, r"n_atten_head: is 4, expected a divisor of 5"),
        ({"full_attn_res": "dependent", "block_attn_res": "dependent"}, "block_attn_res"),
        ({"node_cartesian": "both:1"}, "node_cartesian"),
        ({"node_cartesian": "parity:x"}, "node_cartesian"),
        (
            {"edge_cartesian": True, "message_node_s2": True},
            "edge_cartesian: is True, expected false with grids",
        ),
        ({"grid_branch": [1, 2]}, "grid_branch"),
        ({"sandwich_norm": [True]}, r"sandwich_norm: is \[True\], expected 4 values"),
        ({"lmax": 4, "mmax": 4, "node_wise_s2": True, "lebedev_quadrature": False}, "lebedev_quadrature"),
        ({"lmax": 11}, "lmax: is 11, expected 10 or less"),
        ({"so3_readout": "all"}, "so3_readout: is 'all', expected 'none' or"),
        ({"sel": "many"}, "sel: is 'many', expected numbers"),
        ({"use_spin": [True, False]}, "use_spin"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(ConfigError, match=message):
        kinds.new_potential({**INPUT, **options})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"descriptor": {"type": "se_e3_tebd"}}, r"model\.descriptor\.type: is se_e3_tebd, expected dpa4"),
        ({"bridging_method": "lj"}, "bridging_method"),
        ({"type_map": ["A", "B"], "bridging_method": "zbl"}, "A is not an element"),
        ({"fitting_net": {"atom_ener": [1.0, 2.0, 3.0]}}, "atom_ener"),
    ],
)
def test_models_that_are_refused(model, message):
    with pytest.raises(ConfigError, match=message):
        potential_of(deepmd_input(**model))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("descriptor", "@variables", "output_ffn.so3_linear_1.weight"), np.zeros((3, 4, 5)), "the shape of"),
        (("descriptor", "@variables", "output_ffn.so3_linear_1.weight"), None, "not an array|lacks"),
        (("descriptor", "@variables", "blocks.0.so2_conv.so2_linears.0.m0_idx"), np.arange(3)[::-1], "index"),
        (("descriptor", "n_radial"), 4, "the shape of"),
        (("descriptor", "kmax"), 3, "kmax"),
        (("descriptor", "ntypes"), 3, "ntypes"),
        (("fitting", "neuron"), [4, 4], "neuron"),
        (("fitting", "nets", "network_type"), "fitting_network", "network_type"),
        (("fitting", "dim_descrpt"), 5, "dim_descrpt"),
    ],
)
def test_files_whose_parts_do_not_fit(place, value, message):
    with pytest.raises(ModelFileError, match=message):
        model_of_tree(upgrade(kinds.with_value("dpa4_base", place, value)))


def layered(channels, degree):
    """A model whose layers have kernels of their own on a GPU, with weights behind its messages."""
    options = {"radial_so2_mode": "degree_channel", "radial_so2_rank": 1, "mmax": 1}
    return with_all_weights(kinds.new_potential({**INPUT, **options, "channels": channels, "lmax": degree}))


def with_all_weights(potential):
    """Small random ones in the place of zeros, which new models have behind their messages."""
    random = torch.Generator().manual_seed(0)
    for weight in potential.parameters():
        if not weight.any():
            weight.data.normal_(std=0.1, generator=random)
    return potential.eval()


@pytest.mark.parametrize(("degree", "layers"), [(1, 1), (2, 3), (7, 2)])
def test_a_last_layer_once_an_atom_gives_what_it_gives_once_an_edge(degree, layers, monkeypatch):
    """Also of degrees beyond those of the ops that make frames."""
    monkeypatch.setitem(INPUT, "mixing_layers", layers)
    potential, atoms = layered(4, degree), kinds.alloy()
    potential.model.descriptor.blocks[0].goes_once = False
    at_once = potential.compute(atoms)
    monkeypatch.setattr(convolution, "has_fused_messages", lambda *_: False)
    found = potential.compute(atoms)
    monkeypatch.setattr(convolution, "has_order_moments", lambda *_: False)
    want = potential.compute(atoms)
    for name in ("energy", "forces", "virial"):
        for one in (at_once, found):
            assert np.abs(one[name] - want[name]).max() < 1e-12 * np.abs(want[name]).max()


@pytest.mark.parametrize(
    "options",
    [
        {"n_blocks": 2, "mixing_layers": 3, "grid_branch": [0, 0, 1], "so3_readout": "mlp"},
        {"l_schedule": [2, 1], "sandwich_norm": [True] * 4, "atten_o_proj": True, "grid_mlp": True},
        {"lmax": 3, "mixing_layers": 1, "ffn_blocks": 2, "focus_dim": 4, "radial_so2_mode": "degree"},
        {
            "message_node_so3": False,
            "ffn_so3_grid": False,
            "use_env_seed": False,
            "sandwich_norm": [False] * 4,
        },
    ],
)
def test_blocks_of_one_node_give_what_their_operations_give(options, monkeypatch):
    """Of a crystal, and of an atom alone, which has no edges."""
    usual = {"lmax": 2, "mmax": 1, "message_node_so3": True, "ffn_so3_grid": True, "radial_so2_rank": 1}
    for name, value in (usual | options).items():
        monkeypatch.setitem(INPUT, name, value)
    potential = layered(5, INPUT["lmax"])
    blocks, calls, rows = potential.model.descriptor.blocks, [], BlockOnce.rows
    monkeypatch.setattr(BlockOnce, "rows", lambda *args: calls.append(1) or rows(*args))
    lonely = kinds.alloy()[:1]
    lonely.pbc = False
    boxes = kinds.alloy(), lonely
    found = [potential.compute(atoms) for atoms in boxes]
    assert len(calls) == len(boxes) * len(blocks)
    for block in blocks:
        block.goes_once = False
    for one, atoms in zip(found, boxes, strict=True):
        want = potential.compute(atoms)
        for name in ("energy", "forces", "virial"):
            assert np.abs(one[name] - want[name]).max() <= 1e-12 * np.abs(want[name]).max(), name
    assert len(calls) == len(boxes) * len(blocks) and found[0]["forces"].any()


def test_blocks_of_one_node_have_the_weights_of_now():
    potential, atoms = layered(4, 2), kinds.alloy()
    before = potential.compute(atoms)["forces"]
    with torch.no_grad():
        for weight in potential.model.descriptor.blocks.parameters():
            weight *= 1.1
    after = potential.compute(atoms)["forces"]
    assert np.abs(after - before).max() > 1e-6
    np.testing.assert_array_equal(mdops.Potential(potential.model).compute(atoms)["forces"], after)


@pytest.mark.parametrize(
    ("options", "device", "dtype", "most"),
    [
        ({}, "cpu", "float64", 1e-12),
        ({"edge_norm": True, "n_atten_head": 2, "focus_dim": 4, "n_focus": 3}, "cpu", "float64", 1e-12),
        ({"n_atten_head": 0, "lmax": 3}, "cpu", "float64", 1e-12),
        pytest.param({"focus_dim": 32}, "cuda", "float32", 3e-5, marks=pytest.mark.gpu),
        pytest.param(
            {"edge_norm": True, "lmax": 1, "focus_dim": 64}, "cuda", "float32", 3e-5, marks=pytest.mark.gpu
        ),
        pytest.param(
            {"lmax": 3, "focus_dim": 32, "n_focus": 3}, "cuda", "float32", 3e-5, marks=pytest.mark.gpu
        ),
        pytest.param({"focus_dim": 24}, "cuda", "float32", 3e-5, marks=pytest.mark.gpu),
        pytest.param({"focus_dim": 32, "lmax": 1}, "cuda", "float32", 3e-5, marks=pytest.mark.gpu),
    ],
)
def test_groups_of_channels_go_by_fused_layers_in_simulations(options, device, dtype, most, monkeypatch):
    """By one op, by layers with sums an atom, and with sums an edge, as where nothing is fused."""
    for name, value in {"n_focus": 2, "lmax": 2, "mixing_layers": 3, **options}.items():
        monkeypatch.setitem(INPUT, name, value)
    potential, atoms = layered(8, INPUT["lmax"]), kinds.alloy()
    potential.to(device, getattr(torch, dtype))
    found, groups, own = [], [], convolution.Convolution._sums_of_groups
    for more in (-1, 2) if device == "cpu" else ():  # rows that have zeros, or two groups and zeros
        with monkeypatch.context() as wider:
            wider.setattr(
                convolution, "fused_width", lambda x, degrees, own, groups, more=more: 2 * own + more
            )
            found.append(potential.compute(atoms))
            wider.setattr(convolution, "has_fused_messages", lambda *_: False)
            found.append(potential.compute(atoms))
            wider.setattr(convolution, "has_order_moments", lambda *_: False)
            found.append(potential.compute(atoms))
    monkeypatch.setattr(
        convolution.Convolution,
        "_sums_of_groups",
        lambda self, *args: groups.append(args[-1]) or own(self, *args),
    )
    for without in ("nothing", "has_fused_messages", "has_order_moments", "fused_width"):
        if without != "nothing":
            monkeypatch.setattr(convolution, without, lambda *_: None)
        count = len(groups)
        found.append(potential.compute(atoms))
        assert bool(groups[count:]) == (without != "fused_width")
    for name in ("energy", "forces", "virial"):
        for one in found[:-1]:
            assert np.abs(one[name] - found[-1][name]).max() < most * np.abs(found[-1][name]).max(), name


@pytest.mark.parametrize(
    "options",
    [
        {"radial_so2_mode": "none"},
        {"radial_so2_rank": 0, "n_focus": 2, "edge_norm": True},
        {"radial_so2_rank": 2, "node_wise_so3": True, "n_focus": 3, "focus_dim": 4},
        {"atten_v_proj": True, "atten_f_mix": True, "n_focus": 2},
        {"mmax": 2},
        {
            "mmax": 3,
            "lmax": 3,
            "n_atten_head": 2,
            "n_focus": 2,
            "focus_dim": 4,
            "activation_function": "tanh",
        },
        {"l_schedule": [3, 2], "m_schedule": [2, 1], "radial_so2_mode": "none", "mlp_bias": True},
        {"mlp_bias": True, "layer_scale": True, "n_focus": 2, "edge_norm": True},
        {"mlp_bias": True, "layer_scale": True, "mixing_layers": 1, "n_atten_head": 2},
        {"mlp_bias": True, "mmax": 2, "lmax": 3, "atten_v_proj": True, "activation_function": "softplus"},
        {"layer_scale": True, "mmax": 2, "n_atten_head": 0},
        {"layer_scale": True, "mixing_layers": 1},
        {"activation_function": "gelu", "n_focus": 3, "focus_dim": 4},
        {"so2_norm": True, "activation_function": "silut:2.0"},
        {"s2_activation": [True, False], "n_focus": 2, "mlp_bias": True},
        {"s2_activation": [True, True], "so2_norm": True, "layer_scale": True, "radial_so2_mode": "none"},
        {"so2_norm": True, "mlp_bias": True, "layer_scale": True, "radial_so2_rank": 0},
    ],
)
def test_other_layers_are_fused_in_simulations(options, monkeypatch):
    """Behind mixtures of each channel, products of both ends, or attention that reads messages, and of higher orders,
    with biases, scales, norms and other functions."""
    usual = {"radial_so2_mode": "degree_channel", "radial_so2_rank": 1, "mmax": 1}
    given = {**INPUT, **usual, "channels": 6, "lmax": 2, "mixing_layers": 3, **options}
    potential, atoms = with_all_weights(kinds.new_potential(given)), kinds.alloy()
    lonely = atoms[:1]
    lonely.pbc = False
    boxes = [atoms, lonely]  # an atom alone has no edges
    calls, through, found = [], convolution.through, []
    monkeypatch.setattr(convolution, "through", lambda *args: (calls.append(1), through(*args))[1])
    for more in (-1, 1, 0):  # of two groups' channels: rows with zeros, of two groups, and of one
        width = (
            (lambda x, degrees, own, _: own) if not more else lambda x, degrees, own, _, n=more: 2 * own + n
        )
        monkeypatch.setattr(convolution, "fused_width", width)
        found.append([potential.compute(one) for one in boxes])
    monkeypatch.setattr(convolution, "has_order_moments", lambda *_: False)
    found.append([potential.compute(one) for one in boxes])
    assert len(calls) >= 2 * len(boxes)
    calls.clear()
    monkeypatch.setattr(convolution, "fused_width", lambda *_: None)
    mix = convolution.DegreeMix.forward
    monkeypatch.setattr(convolution.DegreeMix, "forward", lambda self, *args: mix(self, *args[:-1], False))
    wanted = [potential.compute(one) for one in boxes]
    assert not calls
    for answers in found:
        for one, want in zip(answers, wanted, strict=True):
            for name in ("energy", "forces", "virial"):
                assert np.abs(one[name] - want[name]).max() <= 1e-12 * np.abs(want[name]).max(), name


@pytest.mark.parametrize(
    "options",
    [
        {"mmax": 2, "radial_so2_rank": 0, "s2_activation": [True, True]},
        {"mlp_bias": True, "layer_scale": True, "activation_function": "tanh", "so2_norm": True},
    ],
)
def test_programs_of_other_layers_are_for_any_number_of_edges(options):
    usual = {"radial_so2_mode": "degree_channel", "radial_so2_rank": 1, "mmax": 1}
    potential = with_all_weights(kinds.new_potential({**INPUT, **usual, "lmax": 2, **options}))
    program = potential.export().module()
    for box in (kinds.alloy(), kinds.alloy() * (2, 1, 1)):
        system = from_atoms([box], potential.type_map)
        near, want = potential.neighbor_list(system), potential.evaluate(system)
        given = {name: getattr(system, name) for name in ("positions", "types", "cell", "batch")}
        listed = {name: getattr(near, name) for name in ("neighbors", "images", "counts")}
        found = program(**given, **listed)
        for name, value in want.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"mmax": 2, "n_focus": 2},
        {"mlp_bias": True, "layer_scale": True, "so2_norm": True, "activation_function": "tanh"},
        {"radial_so2_rank": 0, "n_atten_head": 2, "s2_activation": [True, True]},
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_other_layers_in_runs_of_edges(options, dtype, monkeypatch):
    usual = {"radial_so2_mode": "degree_channel", "radial_so2_rank": 1, "mmax": 1}
    given = {**INPUT, **usual, "channels": 6, "lmax": 2, "mixing_layers": 3, **options}
    potential, atoms = with_all_weights(kinds.new_potential(given)), kinds.alloy()
    with monkeypatch.context() as unfused:
        unfused.setattr(convolution, "fused_width", lambda *_: None)
        want = potential.compute(atoms)
    potential.to(getattr(torch, dtype))
    monkeypatch.setattr("mdops.models.dpa4.descriptor.device_memory", lambda device: 0)
    most = {"float64": 1e-12, "float32": 1e-5}[dtype]
    for size in (10**6, 37):
        monkeypatch.setattr(DPA4, "_edges_at_once", lambda *_, size=size: size)
        found = potential.compute(atoms)
        for name in ("energy", "forces", "virial"):
            assert np.abs(found[name] - want[name]).max() <= most * np.abs(want[name]).max(), (size, name)


@pytest.mark.parametrize(
    "options",
    [
        {"n_focus": 2},
        {"n_focus": 3, "n_atten_head": 0, "lmax": 2, "mmax": 2, "edge_norm": True},
        {"n_focus": 2, "channels": 6, "n_atten_head": 2, "mixing_layers": 1},
    ],
)
def test_groups_of_channels_go_by_blocks_in_trainings(options, monkeypatch):
    """With the forces of layers of all groups together, and their derivatives by weights."""
    potential = with_all_weights(kinds.new_potential({**INPUT, **options}))
    system, taken = from_atoms([kinds.alloy()], potential.type_map), []
    given = system.positions, system.types, system.cell
    weights = [weight for weight in potential.parameters() if weight.requires_grad]
    own = convolution.Convolution._sums_by_blocks
    monkeypatch.setattr(
        convolution.Convolution, "_sums_by_blocks", lambda *args: taken.append(1) or own(*args)
    )

    def found():
        forces = potential(*given, forces=True, create_graph=True)["forces"]
        by = torch.autograd.grad(forces.square().sum(), weights, materialize_grads=True, allow_unused=True)
        return [forces.detach(), *by]

    by_blocks = found()
    assert taken
    for part in potential.modules():
        if isinstance(part, convolution.Convolution):
            part.mixes_first = False
    taken.clear()
    for one, other in zip(by_blocks, found(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert not taken


def test_trainings_have_second_derivatives_after_a_simulation():
    kinds.check_second_derivatives(layered(4, 2))


def test_products_have_another_accuracy_where_layers_have_kernels(monkeypatch):
    monkeypatch.setattr(mdops.Potential, "device", property(lambda self: torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(InputError, match="does not cover this model"):
        layered(32, 2).float().use_matmul("tf32")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    potential = layered(32, 2).float()
    potential.use_matmul("tf32")
    assert potential.matmul == "tf32"
    for other, name, says in (
        (layered(4, 2).float(), "tf32", "does not cover this model"),
        (layered(64, 3).float(), "tf32", "does not cover this model"),
        (layered(32, 2), "tf32", "computes in float64"),
        (potential, "bf16", "a GPU has no such products"),
    ):
        with pytest.raises(InputError, match=says):
            other.use_matmul(name)


def test_messages_and_their_sums_by_one_op(monkeypatch):
    """As on a GPU that has one kernel for them, also where edges go in runs that are made twice."""
    box = bulk("Cu", cubic=True) * (2, 2, 2)
    box.rattle(0.1, seed=0)
    potential = layered(6, 2)
    want = potential.compute(box)
    calls = []
    op = torch.ops.mdops.so2_messages
    monkeypatch.setattr(
        "mdops.models.dpa4.convolution.has_fused_messages", lambda *sizes: sizes[1:] == (2, 6, 2, 1)
    )
    monkeypatch.setattr(torch.ops.mdops, "so2_messages", lambda *args: (calls.append(1), op(*args))[1])
    for size in (10**6, 200):
        monkeypatch.setattr(DPA4, "_edges_at_once", lambda *_, size=size: size)
        monkeypatch.setattr("mdops.models.dpa4.descriptor.device_memory", lambda device: 0)
        found = potential.compute(box)
        for name in ("energy", "forces", "virial"):
            np.testing.assert_allclose(found[name], want[name], rtol=0, atol=1e-12 * np.abs(want[name]).max())
    assert len(calls) > 2


@pytest.mark.gpu
@pytest.mark.parametrize(("channels", "degree"), [(32, 1), (32, 2), (32, 3), (64, 1), (64, 3)])
def test_one_product_in_the_place_of_three(channels, degree):
    kinds.check_one_product(layered(channels, degree))
