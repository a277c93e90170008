"""TensorFlow graphs: what their constants and operations say is the model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import energy_graph, text, wire

from mdops import load
from mdops.io import read_model, write_model
from mdops.models import DescriptorFitting
from mdops.models.standard import StandardOptions
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
FITTINGS = {
    "plain": {},
    "parameters": {"numb_fparam": 2, "numb_aparam": 1, "resnet_dt": False, "neuron": [7, 14, 14]},
}


def model(descriptor, fitting="plain", seed=1):
    """The tree of a model of O and H with random weights and statistics."""
    section = {
        "type_map": ["O", "H"],
        "descriptor": DESCRIPTORS[descriptor],
        "fitting_net": {"neuron": [9, 9], **FITTINGS[fitting]},
    }
    made = DescriptorFitting.random(parse(StandardOptions, section), seed, torch.float64)
    random = np.random.default_rng(seed)
    for part in made.descriptor.parts:
        part.set_statistics(random.random(2) / 10, 0.1 + random.random((2, 2)) / 10)
    made.fitting.bias.copy_(torch.tensor([-3.0, -1.0]))
    made.set_parameter_statistics(
        {name: (random.random(n), 1 + random.random(n)) for name, n in made.parameter_sizes.items()}
    )
    for layer in (layer for net in made.fitting.nets.nets for layer in net.layers):
        layer.residual &= layer.inputs == layer.outputs  # as in graphs
    return made.to_tree()


def answers(path, structure=None, overflow="extend"):
    """Energy, forces, virial and atom_energy in float64, of a structure (types, positions, cell) or of random atoms."""
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
    return {name: found[name].numpy() for name in ("energy", "forces", "virial", "atom_energy")}


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
    nodes = energy_graph(tree, **options)
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


@pytest.mark.parametrize("op", ["DescrptNorot", "DescrptSeA", "ProdEnvMatA"])
def test_every_version_names_its_operations_in_its_way(op, tmp_path):
    tree = model("two_sided")
    write_model(tmp_path / "model.safetensors", tree)
    path = written(tree, tmp_path / "graph.pb", op=op, bias="last")
    assert_same(answers(path), answers(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["ch_se_e2_a"])
def test_users_graphs_give_tensorflows_answers(name):
    if not (REAL / f"{name}.pb").is_file():
        pytest.skip("the users' files are not here")
    wanted = np.load(REAL / f"{name}.npz")
    for place in ("box", "cluster", "triclinic"):
        known = {key: wanted[f"{place}/{key}"] for key in ("energy", "forces", "virial", "atom_energy")}
        structure = wanted[f"{place}/types"], wanted[f"{place}/positions"], wanted.get(f"{place}/cell")
        assert_same(answers(REAL / f"{name}.pb", structure, "truncate"), known, 1e-10)
