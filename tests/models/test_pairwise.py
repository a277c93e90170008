"""pairwise_dprc: the sum over its parts alone, from graphs and files, by splines, and what is refused."""

import copy
import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mdops import load
from mdops.errors import ConfigError, InputError, UnsupportedModelError
from mdops.io import read_model, write_model
from mdops.models import DescriptorFitting
from mdops.models.standard import StandardOptions
from mdops.options import parse
from mdops.system import from_tensors
from mdops.train.config.read import parse_config

sys.path.insert(0, str(Path(__file__).parents[1] / "io"))
from graphs import Node, model_graph, wire

DESCRIPTOR = {
    "type": "se_atten",
    "attn_layer": 0,
    "tebd_dim": 4,
    "tebd_input_mode": "strip",
    "neuron": [4, 8],
    "axis_neuron": 2,
    "set_davg_zero": True,
}
SIZES = [4, 3, 3, 2]  # atoms of the quantum region, and of three residues


def part(seed, rcut, sel, **more):
    section = {
        "type_map": ["O", "H"],
        "descriptor": {**DESCRIPTOR, "rcut": rcut, "rcut_smth": 1.0, "sel": sel, **more},
        "fitting_net": {"neuron": [6, 6]},
    }
    made = DescriptorFitting.random(parse(StandardOptions, section), seed, torch.float64)
    made.descriptor.set_statistics(np.zeros(2), np.full((2, 2), 0.1))
    made.fitting.bias.view(2, -1).copy_(torch.tensor([[-3.0 * seed], [-1.0]]))
    for layer in (layer for net in made.fitting.nets.nets for layer in net.layers):
        layer.residual &= layer.inputs == layer.outputs  # as in graphs
    made.descriptor.options.zero_padding = True
    return made


def parts():
    quantum, pairs = part(1, 6.0, 10), part(2, 4.5, 8, exclude_types=[[0, 0]])
    pairs.descriptor.type_embedding.load_state_dict(quantum.descriptor.type_embedding.state_dict())
    return quantum.to_tree(), pairs.to_tree()


def pairwise(*models):
    tree = {
        name: models[0][name] for name in ("@class", "type_map", "rcond", "preset_out_bias", "@variables")
    }
    excluded = {"atom_exclude_types": [], "pair_exclude_types": []}
    return {**tree, **excluded, "@version": 1, "type": "pairwise_dprc", "models": list(models)}


def atoms(seed=1):
    """Types, positions, residues of one system."""
    random = np.random.default_rng(seed)
    residue = random.permutation(np.repeat(np.arange(len(SIZES)) * 7, SIZES))
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)[: sum(SIZES)] * 1.7
    return random.integers(0, 2, len(grid)), grid + random.normal(scale=0.2, size=grid.shape), residue


def evaluated(potential, systems, residues=None, **more):
    """The answers for (types, positions) of each system."""
    types, positions = (np.concatenate(values) for values in zip(*systems, strict=True))
    batch = np.repeat(np.arange(len(systems)), [len(one[0]) for one in systems])
    system = from_tensors(
        torch.tensor(positions),
        torch.tensor(types, dtype=torch.int32),
        more.pop("cell", None),
        None,
        torch.tensor(batch, dtype=torch.int32),
        2,
    )
    aparam = (
        None if residues is None else torch.tensor(np.concatenate(residues)[:, None], dtype=torch.float64)
    )
    found = potential.evaluate(system, aparam=aparam, **more)
    return {name: value.numpy() for name, value in found.items()}


def written(tree, path):
    write_model(path, tree)
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairwise")
    models = parts()
    return [
        *(written(tree, folder / f"{k}.safetensors") for k, tree in enumerate(models)),
        written(pairwise(*models), folder / "both.safetensors"),
    ]


def by_hand(files, types, positions, residue):
    """Energies, forces and virials of atoms by each part's own answers for the atoms that it sees."""
    quantum, pairs = (load(file, dtype="float64", spline=False) for file in files[:2])
    found = {"atom_energy": np.zeros(len(types)), "forces": np.zeros((len(types), 3))}
    found["atom_virial"] = np.zeros((len(types), 3, 3))
    for number in np.unique(residue[residue >= 0]):
        inside = np.flatnonzero((residue == 0) | (residue == number))
        own = evaluated(pairs if number else quantum, [(types[inside], positions[inside])], atom_virial=True)
        for name, values in found.items():
            values[inside] += own[name]
    return found


@pytest.mark.parametrize("spline", [False, True])
def test_it_is_the_sum_over_the_region_and_each_residue(files, spline):
    potential = load(files[2], dtype="float64", spline=spline)
    systems = [atoms(seed) for seed in (1, 2)]
    systems[1][2][systems[1][2] == 14] = -1  # left out
    found = evaluated(potential, [one[:2] for one in systems], [one[2] for one in systems], atom_virial=True)
    alone = [by_hand(files, *one) for one in systems]
    for name in alone[0]:
        wanted = np.concatenate([one[name] for one in alone])
        np.testing.assert_allclose(found[name], wanted, rtol=0, atol=(1e-6 if spline else 1e-12))
    energies = [one["atom_energy"].sum() for one in alone]
    np.testing.assert_allclose(found["energy"], energies, rtol=1e-7 if spline else 1e-13)
    assert (found["forces"][len(systems[0][0]) :][systems[1][2] == -1] == 0).all()


def renamed(nodes, suffix):
    """The nodes of a part, whose scopes have a suffix."""
    pattern = r"^(descrpt_attr|fitting_attr|filter_type_all|(?:final_layer|layer_\d+)(?:_type_\d+)?)/"

    def name(text):
        return text if text.startswith("type_embed_net") else re.sub(pattern, rf"\1{suffix}/", text)

    def apart(text):
        new = name(text)
        kept = text.startswith(("type_embed_net", "model_attr", "train_attr", "o_", "t_coord", "one_hot"))
        return new if kept or new != text else f"{text}{suffix}"

    return [dataclasses.replace(n, name=apart(n.name), inputs=tuple(map(apart, n.inputs))) for n in nodes]


def test_a_graph_has_both_parts(tmp_path, files):
    models = parts()
    script = (
        b'{"model": {"type": "pairwise_dprc", "qmmm_model": {"descriptor": {"exclude_types": [[0, 0]]}}}}'
    )
    nodes: dict[str, Node] = {}
    for tree, suffix in zip(models, ("_qm", "_qmmm"), strict=True):
        of_part = model_graph(copy.deepcopy(tree), op="ProdEnvMatAMix", script=script)
        for node in renamed(of_part, suffix):
            nodes.setdefault(node.name, node)
    nodes |= {n: Node(n, "Const", (), {"value": np.int32(2)}) for n in ("descrpt_attr/ntypes",)}
    graph = [*nodes.values(), Node("pairs", "DprcPairwiseIdx", ("t_coord",))]
    (tmp_path / "graph.pb").write_bytes(wire(graph))
    assert read_model(tmp_path / "graph.pb").model["type"] == "pairwise_dprc"
    one = atoms()
    left, right = (
        evaluated(load(file, dtype="float64", spline=False), [one[:2]], [one[2]])
        for file in (tmp_path / "graph.pb", files[2])
    )
    for name in right:
        np.testing.assert_allclose(left[name], right[name], rtol=1e-6, atol=1e-7)


def test_wrong_residues_and_cells_are_refused(files):
    potential, (types, positions, residue) = load(files[2]), atoms()
    system = [(types, positions)]
    for wrong, message in (
        (None, "aparam is missing, expected .* the residue of each atom"),
        ([residue + 0.5], "aparam has .*expected the residue"),
        ([residue - 2], "aparam has -2, expected"),
        ([residue + 1], "system 0 has no atom of residue 0"),
    ):
        with pytest.raises(InputError, match=message):
            evaluated(potential, system, wrong)
    with pytest.raises(InputError, match="knows no periodic images"):
        evaluated(potential, system, [residue], cell=torch.eye(3, dtype=torch.float64)[None] * 30)
    with pytest.raises(InputError, match=r"neighbours in its group .* the sel of models\[1\] is 8"):
        evaluated(potential, [(types, positions * 0.5)], [np.minimum(residue, 7)])


def test_parts_that_do_not_go_are_refused(tmp_path):
    quantum, _ = parts()
    with pytest.raises(UnsupportedModelError, match="is of two models"):
        load(written(pairwise(quantum), tmp_path / "one.safetensors"))


def test_training_is_refused_with_what_trains_it():
    tree = {"model": {"type": "pairwise_dprc", "type_map": ["O", "H"], "qm_model": {}, "qmmm_model": {}}}
    tree |= {"training": {"training_data": {"systems": ["x"]}, "numb_steps": 1}}
    with pytest.raises(ConfigError, match=r"pairwise_dprc is not trained here.*TensorFlow backend trains it"):
        parse_config(tree)
