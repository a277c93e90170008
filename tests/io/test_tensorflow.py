"""TensorFlow graphs: what their constants and operations say is the model."""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from graphs import Node, field, model_graph, mutated, table_nodes, text, wire
from trees import differences

from mdops import load
from mdops.errors import InputError, ModelFileError, UnsupportedModelError
from mdops.io import read_model, write_model
from mdops.io.tensorflow.graph import Graph
from mdops.io.tensorflow.tables import table_node
from mdops.io.tensorflow.wire import decode
from mdops.models import DescriptorFitting
from mdops.models.pairtab import PairTable, PairTableOptions
from mdops.models.standard import StandardOptions
from mdops.models.zbl import ZBLModel, ZBLOptions
from mdops.nn.net import TabulatedNet
from mdops.options import differences as differing
from mdops.options import parse
from mdops.system import from_tensors

REAL = Path(__file__).parents[3] / "shared" / "real"
PART = {"sel": [20, 30], "rcut": 5.0, "rcut_smth": 1.0, "neuron": [4, 8, 16]}
SE_E2_A = {**PART, "type": "se_e2_a", "axis_neuron": 3}
DESCRIPTORS = {
    "two_sided": {**SE_E2_A, "resnet_dt": True, "activation_function": "gelu"},
    "one_sided": {**SE_E2_A, "type_one_side": True, "activation_function": "silu", "precision": "float32"},
    "excluded": {**SE_E2_A, "exclude_types": [[0, 1]], "set_davg_zero": True},
    "se_e2_r": {**PART, "type": "se_e2_r"},
    "se_e3": {**PART, "type": "se_e3", "neuron": [2, 4, 8]},
    "hybrid": {
        "type": "hybrid",
        "list": [{**SE_E2_A, "rcut": 4.0}, {**PART, "type": "se_e3", "neuron": [3, 6]}],
    },
}
TYPES = {**SE_E2_A, "type": "se_atten", "attn_layer": 0, "tebd_dim": 4, "set_davg_zero": False}
# Of models with embeddings of types: the section, the operation of the environment matrix, and the training input.
MIXED = {
    "beside": (TYPES, "ProdEnvMatAMix", {}),
    "stripped": ({**TYPES, "tebd_input_mode": "strip"}, "ProdEnvMatAMix", {}),
    "smooth": (
        {**TYPES, "tebd_input_mode": "strip", "smooth_type_embedding": True},
        "ProdEnvMatAMix",
        {"smooth_type_embedding": True},
    ),
    "ebd_v2": ({**TYPES, "tebd_input_mode": "strip"}, "ProdEnvMatA", {}),
    "ebd_v2_one_sided": ({**TYPES, "tebd_input_mode": "strip", "type_one_side": True}, "ProdEnvMatA", {}),
}
FITTINGS = {
    "plain": {},
    "parameters": {"numb_fparam": 2, "numb_aparam": 1, "resnet_dt": False, "neuron": [7, 14, 14]},
}
OTHERS = {
    "dipole": {"type": "dipole"},
    "polar": {"type": "polar", "fit_diag": False, "scale": [0.5, 3.0]},
    "diagonal": {"type": "polar"},
    "dos": {"type": "dos", "numb_dos": 4},
}


def model(descriptor, fitting="plain", seed=1):
    """The tree of a model of O and H with random weights and statistics."""
    section = {
        "type_map": ["O", "H"],
        "descriptor": DESCRIPTORS[descriptor],
        "fitting_net": {"neuron": [9, 9], **(FITTINGS | OTHERS)[fitting]},
    }
    made = DescriptorFitting.random(parse(StandardOptions, section), seed, torch.float64)
    random = np.random.default_rng(seed)
    for part in made.descriptor.parts:
        part.set_statistics(random.random(2) / 10, 0.1 + random.random((2, 2)) / 10)
    if fitting in ("dipole", "polar", "diagonal"):
        made.fitting.options.exclude_types = made.options.atom_exclude_types = [0]
    else:
        made.fitting.bias.view(2, -1).copy_(torch.tensor([[-3.0], [-1.0]]))
        made.out_bias.view(2, -1).copy_(torch.tensor([[0.5], [-0.25]]))
    if "polar" in made.fitting.options.KIND:
        made.fitting.constant.copy_(torch.tensor([0.0, 1.5]))
    made.set_parameter_statistics(
        {name: (random.random(n), 1 + random.random(n)) for name, n in made.parameter_sizes.items()}
    )
    for layer in (layer for net in made.fitting.nets.nets for layer in net.layers):
        layer.residual &= layer.inputs == layer.outputs  # as in graphs
    return made.to_tree()


def answers(path, structure=None, overflow="extend"):
    """All answers in float64, of a structure (types, positions, cell) or of random atoms."""
    potential = load(path, dtype="float64", spline=False, overflow=overflow)
    if structure is None:
        random = np.random.default_rng(1)
        structure = (
            random.integers(0, len(potential.type_map), 24),
            random.random((24, 3)) * 7,
            np.eye(3) * 7.5,
        )
    types, positions, cell = structure
    system = from_tensors(
        torch.tensor(positions),
        torch.tensor(types, dtype=torch.int32),
        None if cell is None else torch.tensor(cell),
        None,
        None,
        len(potential.type_map),
    )
    inputs = {name: torch.full((n,), 0.3) for name, n in potential.model.parameter_sizes.items() if n}
    found = potential.evaluate(system, **inputs)
    return {name: value.numpy() for name, value in found.items()}


def assert_same(found, wanted, tolerance=1e-12):
    for name, value in wanted.items():
        np.testing.assert_allclose(
            found[name].reshape(-1),
            value.reshape(-1),
            rtol=0,
            atol=tolerance * abs(value).max(),
            err_msg=name,
        )


def written(tree, path, **options):
    """The path, after the tree was written there as a graph."""
    nodes = model_graph(tree, **options)
    path.write_bytes(wire(nodes) if path.suffix == ".pb" else text(nodes).encode())
    return path


@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("descriptor", DESCRIPTORS)
def test_a_graph_is_the_model_that_it_was_written_from(descriptor, fitting, tmp_path):
    tree = model(descriptor, fitting)
    write_model(tmp_path / "model.safetensors", tree)
    wanted = answers(tmp_path / "model.safetensors")
    for suffix in ("pb", "pbtxt"):
        path = written(tree, tmp_path / f"graph.{suffix}")
        found = read_model(path)
        assert found.source["format"] == f"TensorFlow graph (.{suffix})"
        assert found.source["min_nbor_dist"] == 0.9
        assert found.model["type_map"] == ["O", "H"]
        assert_same(answers(path), wanted)


@pytest.mark.parametrize("fitting", OTHERS)
@pytest.mark.parametrize("descriptor", ["two_sided", "one_sided"])
def test_a_graph_may_have_other_outputs_and_answer_for_some_types(descriptor, fitting, tmp_path):
    tree = model(descriptor, fitting)
    write_model(tmp_path / "model.safetensors", tree)
    path, wanted = written(tree, tmp_path / "graph.pb"), answers(tmp_path / "model.safetensors")
    (name,) = (name for name in wanted if name.startswith("atom_"))
    silent = np.linalg.norm(wanted[name].reshape(24, -1), axis=1) == 0
    assert silent.any() == (fitting != "dos") and not silent.all()
    assert_same(answers(path), wanted)


@pytest.mark.parametrize("adds_bias", [True, False])
def test_a_graph_may_have_a_table_of_pairs(adds_bias, tmp_path):
    net, random = model("two_sided"), np.random.default_rng(3)
    net["fitting"]["atom_ener"] = []
    rows = np.column_stack([0.25 + 0.25 * np.arange(20), random.normal(size=(20, 3))])
    np.savetxt(tmp_path / "table.txt", rows)
    section = {"type_map": ["O", "H"], "tab_file": str(tmp_path / "table.txt"), "rcut": 5.0, "sel": 50}
    table = PairTable.random(parse(PairTableOptions, section), 1, torch.float64)
    if adds_bias:
        table.out_bias.copy_(torch.from_numpy(net["fitting"]["@variables"]["bias_atom_e"]).reshape(-1))
    zeros = torch.zeros(2, dtype=torch.float64)
    keys = {"use_srtab": "", "smin_alpha": 0.125, "sw_rmin": 0.75, "sw_rmax": 2.5, "type_map": ["O", "H"]}
    parts = [DescriptorFitting.from_tree(net, torch.float64), table]
    options = ZBLOptions(
        descriptor=parts[0].options.descriptor, fitting_net=parts[0].options.fitting_net, **keys
    )
    tree = ZBLModel(options, ["O", "H"], zeros, zeros + 1, parts).to_tree()
    write_model(tmp_path / "model.safetensors", tree)
    graph = [*model_graph(net), *table_nodes(tree, adds_bias)]
    (tmp_path / "graph.pb").write_bytes(wire(graph))
    random = np.random.default_rng(1)
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)[:24] * 2.4
    structure = random.integers(0, 2, 24), grid + random.random((24, 3)) * 0.9, np.eye(3) * 7.5
    wanted = answers(tmp_path / "model.safetensors", structure)
    assert_same(answers(tmp_path / "graph.pb", structure), wanted)
    plain = written(net, tmp_path / "plain.pb")
    assert abs(answers(plain, structure)["forces"] - wanted["forces"]).max() > 0.01
    (tmp_path / "graph.pb").write_bytes(wire([node for node in graph if node.name != "SoftMinSwitch"]))
    with pytest.raises(ModelFileError, match="SoftMinSwitch, which is not there"):
        read_model(tmp_path / "graph.pb")


def test_a_graph_may_have_a_modifier(tmp_path):
    """Of charges; the nodes of its dipole model are in a scope of their own, and its file is read beside."""
    values = {
        "type": b"dipole_charge",
        "mdl_name": b"dipole.pb",
        "mdl_charge_map": b"-8",
        "sys_charge_map": b"6 1",
        "ewald_h": np.array(1.0),
        "ewald_beta": np.array(0.4),
    }
    nodes = [Node(f"modifier_attr/{name}", "Const", (), {"value": value}) for name, value in values.items()]
    nodes.append(Node("dipole_charge/ProdEnvMatA", "ProdEnvMatA"))
    (tmp_path / "graph.pb").write_bytes(wire([*model_graph(model("two_sided")), *nodes]))
    assert read_model(tmp_path / "graph.pb").source["modifier"] == {
        "type": "dipole_charge",
        "model_name": "dipole.pb",
        "model_charge_map": [-8.0],
        "sys_charge_map": [6.0, 1.0],
        "ewald_h": 1.0,
        "ewald_beta": float(np.float32(0.4)),
    }
    dipoles = model("one_sided", "dipole")
    dipoles["fitting"]["exclude_types"] = dipoles["atom_exclude_types"] = [1]
    written(dipoles, tmp_path / "dipole.pb")
    assert load(tmp_path / "graph.pb").modifier.charges.tolist() == [6.0, 1.0]
    nodes[2].attributes["value"] = b"much"
    (tmp_path / "graph.pb").write_bytes(wire([*model_graph(model("two_sided")), *nodes]))
    with pytest.raises(ModelFileError, match="charges that are not numbers"):
        read_model(tmp_path / "graph.pb")


def test_polarizabilities_without_their_operations_are_refused(tmp_path):
    nodes = [node for node in model_graph(model("two_sided", "polar")) if node.name != "polar_1/add_1"]
    for node in nodes:
        node.inputs = tuple("polar_1/mul" if name == "polar_1/add_1" else name for name in node.inputs)
    (tmp_path / "graph.pb").write_bytes(wire(nodes))
    with pytest.raises(ModelFileError, match="should be followed by Add"):
        read_model(tmp_path / "graph.pb")


def mixed_model(name, seed=1, fitting="plain", mean=0.05):
    """The tree of a model with embeddings of types, and how it is written as a graph."""
    descriptor, op, stated = MIXED[name]
    fitting = {"neuron": [9, 9], **FITTINGS[fitting]}
    section = {"type_map": ["O", "H"], "descriptor": descriptor, "fitting_net": fitting}
    made = DescriptorFitting.random(parse(StandardOptions, section), seed, torch.float64)
    made.descriptor.set_statistics(np.full(2, mean), np.full((2, 2), 0.1))
    made.fitting.bias.view(2, -1).copy_(torch.tensor([[-3.0], [-1.0]]))
    for layer in (layer for net in made.fitting.nets.nets for layer in net.layers):
        layer.residual &= layer.inputs == layer.outputs  # as in graphs
    options, smooth = made.descriptor.options, bool(stated)
    options.zero_padding, options.cubic_switch = not smooth, 1.0 if smooth else 0.0
    script = json.dumps({"model": {"descriptor": stated}}).encode()
    return made.to_tree(), {"op": op, "script": script}


def with_pairs(tree, seed=3):
    """The tree with tables in the place of its nets."""
    tree, descriptor = tabulated(tree, seed), tree["descriptor"]
    values = np.random.default_rng(seed).normal(size=(3, 3, descriptor["neuron"][-1]))
    descriptor["embeddings_strip"] = {
        "@class": "TypePairs",
        "@version": 1,
        "ntypes": 2,
        "neuron": [values.shape[-1]],
        "precision": "float64",
        "@variables": {"values": values},
    }
    descriptor["neuron"] = [values.shape[-1]]
    return tree


@pytest.mark.parametrize("name", MIXED)
def test_nets_may_take_embeddings_of_types(name, tmp_path):
    tree, options = mixed_model(name)
    write_model(tmp_path / "model.safetensors", tree)
    path = written(tree, tmp_path / "graph.pb", **options)
    assert_same(answers(path), answers(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("fitting", FITTINGS)
@pytest.mark.parametrize("name", ["beside", "stripped"])
def test_energies_in_vacuum_are_those_of_types(name, fitting, tmp_path):
    """An atom alone has the energy of its type, whatever the parameters are; forces stay."""
    tree, options = mixed_model(name, fitting=fitting, mean=0.0)
    plain = written(tree, tmp_path / "plain.pb", **options)
    path = written(tree, tmp_path / "graph.pb", vacuum=True, **options)
    alone = np.arange(4) % 2, np.arange(12.0).reshape(4, 3) * 30, None
    np.testing.assert_allclose(answers(path, alone)["atom_energy"], [-3, -1, -3, -1], rtol=1e-14)
    left, right = answers(path), answers(plain)
    assert_same(left, {"forces": right["forces"], "virial": right["virial"]})
    types = np.random.default_rng(1).integers(0, 2, 24)  # those of `answers`
    constant = answers(plain, alone)["atom_energy"] - [-3, -1, -3, -1]
    assert_same(left, {"atom_energy": right["atom_energy"] - constant[types]})
    assert abs(constant).max() > 0.1


@pytest.mark.parametrize("name", ["stripped", "smooth", "ebd_v2"])
def test_tables_with_embeddings_of_types_are_the_model(name, tmp_path):
    tree, options = mixed_model(name)
    tree = with_pairs(tree)
    path = written(tree, tmp_path / "graph.pb", **options)
    del tree["descriptor"]["embeddings"]["networks"][0]["info"]
    for suffix in ("safetensors", "json"):
        write_model(tmp_path / f"model.{suffix}", tree)
        assert_same(answers(path), answers(tmp_path / f"model.{suffix}"))
    potential = load(path, dtype="float64", spline=False)
    potential.save(tmp_path / "again.safetensors")
    assert_same(answers(tmp_path / "again.safetensors"), answers(path))
    values = tree["descriptor"]["embeddings_strip"]["@variables"]["values"]
    values[1, 0] += 1.0
    write_model(tmp_path / "model.safetensors", tree)
    with pytest.raises(AssertionError):
        assert_same(answers(tmp_path / "model.safetensors"), answers(path))


def test_a_table_may_multiply_numbers_of_neighbours_alone(tmp_path):
    """One-sided: of each neighbour, and of absent ones, not of each centre and neighbour."""
    tree, options = mixed_model("ebd_v2")
    values = with_pairs(tree)["descriptor"]["embeddings_strip"]["@variables"]["values"]
    values[:] = values[0]
    wanted = answers(written(tree, tmp_path / "both.pb", **options))
    tree["descriptor"]["embeddings_strip"]["@variables"]["values"] = values[0]
    assert_same(answers(written(tree, tmp_path / "one.pb", **options)), wanted)
    tree["descriptor"]["embeddings_strip"]["@variables"]["values"] = values[0, :2]
    with pytest.raises(ModelFileError, match="2 rows of numbers for 2 types"):
        read_model(written(tree, tmp_path / "wrong.pb", **options))


def test_tables_with_embeddings_of_types_are_of_some_types_too(tmp_path):
    """Of a model without the first type, in a cluster of the second."""
    tree, options = mixed_model("smooth")
    model_of = load(written(with_pairs(tree), tmp_path / "graph.pb", **options), dtype="float64").model
    part = type(model_of).tree_of_types(model_of.to_tree(), [1], ["H"])
    write_model(tmp_path / "part.safetensors", part)
    positions = np.random.default_rng(1).random((9, 3)) * 4
    wanted = answers(tmp_path / "graph.pb", (np.ones(9, int), positions, None))
    assert_same(answers(tmp_path / "part.safetensors", (np.zeros(9, int), positions, None)), wanted)


def test_numbers_of_pairs_of_types_have_to_fit(tmp_path):
    tree, _ = mixed_model("stripped")
    del with_pairs(tree)["descriptor"]["embeddings"]["networks"][0]["info"]
    values = tree["descriptor"]["embeddings_strip"]["@variables"]["values"]
    tree["descriptor"]["embeddings_strip"]["@variables"]["values"] = values[:2]
    write_model(tmp_path / "model.safetensors", tree)
    with pytest.raises(ModelFileError, match=r"embeddings_strip\.@variables\.values"):
        load(tmp_path / "model.safetensors")


def test_places_of_each_type_are_kept_with_excluded_types(tmp_path):
    """The kind of its own (tests/models/test_se_a_tebd.py) has the rows of zeros that absent neighbours have then."""
    tree, options = mixed_model("ebd_v2")
    options["script"] = json.dumps({"model": {"descriptor": {"exclude_types": [[0, 1]]}}}).encode()
    written(tree, tmp_path / "graph.pb", **options)
    found = read_model(tmp_path / "graph.pb").model["descriptor"]
    assert (found["type"], found["exclude_types"]) == ("se_a_ebd_v2", [[0, 1]])
    assert len(found["sel"]) == 2 and found["@variables"]["davg"].any()
    answers(tmp_path / "graph.pb")


@pytest.mark.parametrize("op", ["DescrptNorot", "DescrptSeA", "ProdEnvMatA"])
def test_every_version_names_its_operations_in_its_way(op, tmp_path):
    tree = model("two_sided")
    write_model(tmp_path / "model.safetensors", tree)
    path = written(tree, tmp_path / "graph.pb", op=op, bias="last")
    assert_same(answers(path), answers(tmp_path / "model.safetensors"))


def tabulated(tree, seed=2):
    """The tree with tables in the place of its embedding nets: from -3 to 2 in steps of 0.5, then to 10 in ones."""
    random, nets = np.random.default_rng(seed), tree["descriptor"]["embeddings"]["networks"]
    breaks = np.concatenate([np.arange(-3, 2, 0.5), np.arange(2, 11.0)])
    for i, net in enumerate(nets):
        width = net["neuron"][-1]
        arrays = {"breaks": breaks, "coefficients": random.normal(size=(len(breaks) - 1, width, 6)) / 10}
        nets[i] = {
            "@class": "TabulatedNetwork",
            "@version": 1,
            "in_dim": 1,
            "neuron": [width],
            "precision": "float64",
            "@variables": arrays,
            "info": [-3.0, 2.0, 10.0, 0.5, 1.0],
        }
    return tree


@pytest.mark.parametrize("name", ["two_sided", "one_sided"])
def test_tables_of_compressed_graphs_are_the_model(name, tmp_path):
    tree = tabulated(model(name))
    path = written(tree, tmp_path / "graph.pb")
    for net in tree["descriptor"]["embeddings"]["networks"]:
        del net["info"]
    for suffix in ("safetensors", "json"):
        write_model(tmp_path / f"model.{suffix}", tree)
        assert_same(answers(path), answers(tmp_path / f"model.{suffix}"))
    with pytest.raises(ModelFileError, match="its embedding nets are tables"):
        write_model(tmp_path / "model.dp", tree)
    potential = load(path, dtype="float64", spline=False)
    potential.save(tmp_path / "again.safetensors")
    assert_same(answers(tmp_path / "again.safetensors"), answers(path))


def test_a_table_is_its_polynomials_and_goes_on_along_tangents():
    random = np.random.default_rng(1)
    breaks, coefficients = np.array([-1.0, 0.5, 2.0]), random.normal(size=(2, 3, 6))
    net = TabulatedNet(torch.from_numpy(breaks), torch.from_numpy(coefficients))
    x = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.9, 3.5], dtype=torch.float64)

    def value(piece, t, order=0):
        return [np.polyval(np.polyder(c[::-1], order), t) for c in coefficients[piece]]

    wanted = np.array([
        np.add(value(0, 0.0), np.multiply(-1.0, value(0, 0.0, 1))),
        value(0, 0.0), value(0, 1.0), value(1, 0.0), value(1, 1.4),
        np.add(value(1, 1.5), np.multiply(1.5, value(1, 1.5, 1))),
    ])  # fmt: skip
    np.testing.assert_allclose(net(x[:, None]).numpy(), wanted, rtol=1e-13)
    assert net(x[:, None].float()).dtype == torch.float32
    inner = x[[0, 2, 4, 5], None].requires_grad_()
    assert torch.autograd.gradcheck(net, inner) and torch.autograd.gradgradcheck(net, inner)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_of_a_table_follow_from_its_own_precision(dtype):
    """700 pieces of 0.1: in float32 the quotient is 700, in float64 with the same stride less. Each row has its number
    as the value of the table."""
    info = np.array([-35, 35, 175, 0.1, 1.0, -1], dtype)
    rows = np.zeros((980, 6), dtype)
    rows[:, 0] = np.arange(980)
    nodes = [
        Node("table", "Const", (), {"value": rows}),
        Node("info", "Const", (), {"value": info}),
        Node(
            "filter_type_all/TabulateFusionSeT",
            "TabulateFusionSeT",
            ("table", "info"),
            {"last_layer_size": 1},
        ),
    ]
    graph = Graph(decode(memoryview(wire(nodes)), "GraphDef"))
    net = TabulatedNet.from_tree(table_node(graph, graph.nodes[nodes[2].name], mirrored=True), torch.float64)
    x = torch.tensor([-174.5, -35.5, -34.95, 34.95, 35.5, 100.5, 174.5], dtype=torch.float64)
    assert net(x[:, None])[:, 0].tolist() == [0, 139, 140, 839, 840, 905, 979]


def test_splines_are_made_of_tables(tmp_path):
    """Of one that is smooth, in float32, too, which its pieces would not be if they were rounded."""
    tree = tabulated(model("two_sided"))
    for k, net in enumerate(tree["descriptor"]["embeddings"]["networks"]):
        arrays = net["@variables"]
        center = arrays["breaks"][:-1, None]
        phase = np.arange(net["neuron"][-1]) / 7 + k
        taylor = [
            np.sin(0.05 * center + phase + p * np.pi / 2) * 0.05**p / math.factorial(p) for p in range(6)
        ]
        arrays["coefficients"] = np.stack(taylor, -1)
    path = written(tree, tmp_path / "graph.pb")
    for dtype, bound in (("float32", 2e-5), ("float64", 1e-7)):
        potential = load(path, dtype=dtype, overflow="extend", r_min=0.9)
        assert potential.knots and potential.knots[0].error < bound


def test_a_training_may_begin_with_a_graph(tmp_path):
    """Its cutoffs, which TensorFlow has in float32, are those of the input."""
    part = {**SE_E2_A, "rcut": 4.3, "rcut_smth": 0.6}
    section = {"type_map": ["O", "H"], "descriptor": part, "fitting_net": {"neuron": [9, 9]}}
    options = parse(StandardOptions, section)
    made = DescriptorFitting.random(options, 1, torch.float64)
    made.descriptor.set_statistics(np.full(2, 0.05), np.full((2, 2), 0.1))
    path = written(made.to_tree(), tmp_path / "graph.pb")
    found = load(path).model.options
    assert found.descriptor.rcut == pytest.approx(4.3, abs=1e-6) and found.descriptor.rcut != 4.3
    assert list(differing(options, found, "model", ["O", "H"], ["O", "H"])) == []
    other = parse(StandardOptions, {**section, "descriptor": {**part, "rcut": 4.30001}})
    assert [name for name, *_ in differing(other, found, "model", ["O", "H"], ["O", "H"])] == [
        "model.descriptor.rcut"
    ]


def spin_model(**options):
    """The tree of a model of Ni, O and a third type, whose atoms have no energy."""
    descriptor = {**SE_E2_A, "sel": [20, 30, 20], **options}
    section = {"type_map": ["Ni", "O", "X"], "descriptor": descriptor, "fitting_net": {"neuron": [9, 9]}}
    made = DescriptorFitting.random(parse(StandardOptions, section), 1, torch.float64)
    made.descriptor.set_statistics(np.full(3, 0.05), np.full((3, 2), 0.1))
    made.fitting.bias.view(3, -1)[0] = -2.5
    made.fitting.options.exclude_types = made.options.atom_exclude_types = [2]
    return made.to_tree()


@pytest.mark.parametrize("one_sided", [False, True])
def test_spins_are_virtual_atoms(one_sided, tmp_path):
    """Energies, forces and virials are those of the model in which the virtual atoms are atoms."""
    tree, (length, norm), n = spin_model(type_one_side=one_sided), (0.4, 1.25), 12
    write_model(tmp_path / "atoms.safetensors", tree)
    path = written(tree, tmp_path / "graph.pb", spin=(length, norm))
    random = np.random.default_rng(1)
    types, positions, cell = np.arange(n) % 2, random.random((n, 3)) * 6, np.eye(3) * 6.5
    spins = np.where(types[:, None] == 0, random.normal(size=(n, 3)), 0.0)
    magnetic = types == 0
    away = (spins * length / norm)[magnetic]
    every = np.concatenate([positions, positions[magnetic] + away])
    kinds = np.concatenate([types, np.full(magnetic.sum(), 2)])
    wanted = answers(tmp_path / "atoms.safetensors", (kinds, every, cell))
    potential = load(path, dtype="float64", spline=False, overflow="extend")
    assert potential.model.spin.use_spin == (True, False) and potential.type_map[:2] == ["Ni", "O"]
    potential.save(tmp_path / "again.dp")
    for place in (path, tmp_path / "again.dp"):
        found = load(place, dtype="float64", spline=False, overflow="extend").forward(
            torch.tensor(positions),
            torch.tensor(types),
            torch.tensor(cell),
            spins=torch.tensor(spins),
            forces=True,
        )
        found = {name: value.detach().numpy() for name, value in found.items()}
        forces, of_virtual = wanted["forces"][:n].copy(), wanted["forces"][n:]
        forces[magnetic] += of_virtual
        turned = np.einsum("na,nb->ab", of_virtual, away)
        assert_same(found, {"energy": wanted["energy"], "forces": forces})
        assert_same(found, {"virial": wanted["virial"][0] - turned})
        assert_same({"m": found["force_mag"][magnetic]}, {"m": of_virtual * length / norm})


def test_spins_that_do_not_fit_the_model_are_refused(tmp_path):
    said = json.dumps({"model": {"spin": {"use_spin": [False, True]}}}).encode()
    nodes = model_graph(spin_model(), spin=(0.4, 1.25))
    other = {"spin_attr/spin_norm": np.zeros(1), "spin_attr/ntypes_spin": np.int32(2)}
    cases = [model_graph(spin_model(), spin=(0.4, 1.25), script=said)]
    for name, value in other.items():
        rest = [node for node in nodes if node.name != name]
        cases.append([*rest, Node(name, "Const", (), {"value": np.asarray(value)})])
    for case, message in zip(cases, ("other spins", "spin_norm .* wrong", "the type map"), strict=True):
        (tmp_path / "graph.pb").write_bytes(wire(case))
        with pytest.raises(ModelFileError, match=message):
            read_model(tmp_path / "graph.pb")
    tree, options = mixed_model("stripped")
    tree["fitting"]["exclude_types"] = [1]
    (tmp_path / "graph.pb").write_bytes(wire(model_graph(tree, spin=(0.4, 1.25), **options)))
    with pytest.raises(UnsupportedModelError, match="a model with spins that is not of se_e2_a"):
        read_model(tmp_path / "graph.pb")


REFUSED = {
    "model_attr/model_type": (b"wannier", "a model of wannier"),
    "modifier_attr/type": (b"other", "modifier"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_models_are_refused_by_name(name, tmp_path):
    value, message = REFUSED[name]
    nodes = [node for node in model_graph(model("two_sided")) if node.name != name]
    (tmp_path / "graph.pb").write_bytes(wire([*nodes, Node(name, "Const", (), {"value": value})]))
    with pytest.raises(UnsupportedModelError, match=message):
        read_model(tmp_path / "graph.pb")


@pytest.mark.parametrize(
    ("op", "message"),
    {
        "DescrptSeAEf": "se_a_ef .* evaluate it with DeePMD-kit",
        "MapFltNvnmd": "NVNMD is not read from TensorFlow graphs",
    }.items(),
)
def test_operations_that_would_change_the_energy_are_refused(op, message, tmp_path):
    (tmp_path / "graph.pb").write_bytes(wire([*model_graph(model("two_sided")), Node("other", op)]))
    with pytest.raises(UnsupportedModelError, match=message):
        read_model(tmp_path / "graph.pb")


def cluster(tree, script):
    """The graph of a model of se_e2_a as one of se_a_mask has it: without cutoffs and statistics."""
    nodes = model_graph(tree, script=json.dumps({"model": {"descriptor": script}}).encode())
    inputs = ("t_coord", "t_type", "t_aparam", "t_box", "t_natoms", "t_mesh")
    placeholders = [Node(name, "Placeholder") for name in inputs if name != "t_coord"]
    found = [Node(n.name, "DescrptSeAMask", inputs) if n.op == "ProdEnvMatA" else n for n in nodes]
    return wire([*placeholders, *found])


def test_all_pairs_of_a_cluster_are_se_e2_a_without_an_end(tmp_path):
    """Atoms see each other at any distance, by the bare 1/r; a cell is refused."""
    tree = copy.deepcopy(model("two_sided"))
    descriptor = tree["descriptor"]
    descriptor["exclude_types"] = []
    (tmp_path / "graph.pb").write_bytes(cluster(tree, {"type": "se_a_mask", "sel": descriptor["sel"]}))
    left = load(tmp_path / "graph.pb", dtype="float64", spline=False)
    descriptor |= {"rcut": 500.0, "rcut_smth": 499.0}
    descriptor["env_mat"] |= {"rcut": 500.0, "rcut_smth": 499.0}
    descriptor["@variables"]["davg"][:] = 0
    descriptor["@variables"]["dstd"][:] = 1
    write_model(tmp_path / "wanted.json", tree)
    right = load(tmp_path / "wanted.json", dtype="float64", spline=False)
    atoms = Atoms([left.type_map[k] for k in (0, 1, 1, 0)], [[0, 0, 0], [1, 0, 0.3], [0, 40, 1], [120, 3, 0]])
    found, wanted = left.compute(atoms), right.compute(atoms)
    for name in ("energy", "forces", "atom_energy"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-12, atol=1e-14)
    assert np.abs(found["forces"]).max() > 1e-6 and left.neighbors[0].sel == tuple(descriptor["sel"])
    atoms.set_cell([30, 30, 30])
    atoms.pbc = True
    with pytest.raises(InputError, match="reaches over too many periodic images"):
        left.compute(atoms)


@pytest.mark.parametrize("sel", [None, [3], [2, "x"], [-1, 5], [10**9, 1]])
def test_a_cluster_without_its_size_is_refused(sel, tmp_path):
    (tmp_path / "graph.pb").write_bytes(cluster(model("two_sided"), {"type": "se_a_mask", "sel": sel}))
    with pytest.raises(ModelFileError, match="sel"):
        read_model(tmp_path / "graph.pb")


def test_a_graph_that_is_no_deep_potential_is_refused(tmp_path):
    (tmp_path / "graph.pb").write_bytes(wire([Node("x", "Placeholder"), Node("y", "Tanh", ("x",))]))
    with pytest.raises(ModelFileError, match="not a Deep Potential"):
        read_model(tmp_path / "graph.pb")


@pytest.mark.parametrize("suffix", ["pb", "pbtxt"])
def test_a_graph_that_is_cut_anywhere_is_refused(suffix, tmp_path):
    path = written(model("two_sided"), tmp_path / f"graph.{suffix}")
    data, cut, wanted = path.read_bytes(), tmp_path / f"cut.{suffix}", read_model(path).model
    ends = sorted({*range(0, len(data), max(1, len(data) // 300)), *range(len(data) - 60, len(data) - 1)})
    for end in ends:
        cut.write_bytes(data[:end])
        try:
            found = read_model(cut).model
        except ModelFileError as error:
            assert str(error).startswith(f"{cut}: ")
        else:  # only what is said of TensorFlow's version is missing
            assert end > len(data) - 40 and differences(found, wanted) == []


def test_sizes_are_not_believed(tmp_path):
    """A constant of one value for a shape of 2^60, and one of a million dimensions."""
    for shape in ([2**30, 2**30], [1] * 1000):
        dims = b"".join(field(2, field(1, size)) for size in shape)
        tensor = field(1, 2) + field(2, dims) + field(6, np.float64(1).tobytes())
        attribute = field(5, field(1, b"value") + field(2, field(8, tensor)))
        node = field(1, b"fitting_attr/dfparam") + field(2, b"Const") + attribute
        nodes = [node for node in model_graph(model("two_sided")) if node.name != "fitting_attr/dfparam"]
        (tmp_path / "graph.pb").write_bytes(field(1, node) + wire(nodes))
        with pytest.raises(ModelFileError, match="has the shape"):
            read_model(tmp_path / "graph.pb")


def test_changed_bytes_are_refused_or_change_what_they_say(tmp_path):
    """A short run of scripts/mutate_graphs.py."""
    data = wire(model_graph(tabulated(model("one_sided"))))
    path = tmp_path / "graph.pb"
    for seed in range(300):
        path.write_bytes(mutated(data, np.random.default_rng(seed)))
        try:
            read_model(path)
        except (ModelFileError, UnsupportedModelError) as error:
            assert str(error).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["ch_se_e2_a"])
def test_users_graphs_give_tensorflows_answers(name):
    if not (REAL / f"{name}.pb").is_file():
        pytest.skip("the users' files are not here")
    wanted = np.load(REAL / f"{name}.npz")
    for place in ("box", "cluster", "triclinic"):
        known = {key: wanted[f"{place}/{key}"] for key in ("energy", "forces", "virial", "atom_energy")}
        structure = wanted[f"{place}/types"], wanted[f"{place}/positions"], wanted.get(f"{place}/cell")
        assert_same(answers(REAL / f"{name}.pb", structure, "truncate"), known, 1e-10)
