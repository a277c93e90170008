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
from mdops.errors import ConfigError, InputError, ModelFileError, UnsupportedModelError
from mdops.io import read_model, write_model
from mdops.models import DescriptorFitting
from mdops.models.standard import StandardOptions
from mdops.options import parse
from mdops.system import from_tensors
from mdops.train import Trainer
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


def test_atoms_that_are_left_out_have_no_energy(files):
    """Whatever a fine-tuning adds to the energies of types."""
    potential, (types, positions, residue) = load(files[2], dtype="float64"), atoms()
    before = evaluated(potential, [(types, positions)], [np.where(residue == 14, -1, residue)])["atom_energy"]
    potential.model.out_bias += torch.tensor([[3.0], [5.0]]).view_as(potential.model.out_bias)
    found = evaluated(potential, [(types, positions)], [np.where(residue == 14, -1, residue)])["atom_energy"]
    wanted = np.where(residue == 14, 0.0, before + np.where(types == 0, 3.0, 5.0))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


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


@pytest.mark.parametrize("vacuum", [False, True])
def test_a_graph_has_both_parts(tmp_path, vacuum):
    """With `vacuum` energies of atoms alone are given (atom_ener), and the net with the type alone is taken off."""
    models = parts()
    script = (
        b'{"model": {"type": "pairwise_dprc", "qmmm_model": {"descriptor": {"exclude_types": [[0, 0]]}}}}'
    )
    nodes: dict[str, Node] = {}
    for tree, suffix in zip(models, ("_qm", "_qmmm"), strict=True):
        of_part = model_graph(copy.deepcopy(tree), op="ProdEnvMatAMix", script=script, vacuum=vacuum)
        for node in renamed(of_part, suffix):
            nodes.setdefault(node.name, node)
    nodes |= {n: Node(n, "Const", (), {"value": np.int32(2)}) for n in ("descrpt_attr/ntypes",)}
    graph = [*nodes.values(), Node("pairs", "DprcPairwiseIdx", ("t_coord",))]
    (tmp_path / "graph.pb").write_bytes(wire(graph))
    assert read_model(tmp_path / "graph.pb").model["type"] == "pairwise_dprc"
    if vacuum:
        for tree in models:
            bias = tree["fitting"]["@variables"]["bias_atom_e"].ravel().tolist()
            tree["fitting"] |= {"atom_ener": bias, "types_in_vacuum": tree["descriptor"]["tebd_dim"]}
    one, wanted = atoms(), written(pairwise(*models), tmp_path / "wanted.safetensors")
    left, right = (
        evaluated(load(file, dtype="float64", spline=spline), [one[:2]], [one[2]])
        for file, spline in ((tmp_path / "graph.pb", False), (wanted, vacuum))
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


def test_a_file_has_as_many_numbers_in_vacuum_as_its_types(tmp_path):
    quantum, pairs = parts()
    quantum["fitting"] |= {"atom_ener": [-1.0, -2.0], "types_in_vacuum": 3}
    with pytest.raises(ModelFileError, match=r"types_in_vacuum is 3, .* should be 4"):
        load(written(pairwise(quantum, pairs), tmp_path / "odd.safetensors"))


def test_parts_that_do_not_go_are_refused(tmp_path):
    quantum, _ = parts()
    with pytest.raises(UnsupportedModelError, match="is of two models"):
        load(written(pairwise(quantum), tmp_path / "one.safetensors"))


def train(tree, folder):
    trainer = Trainer(parse_config(tree), folder)
    trainer.run()
    return trainer.potential.eval()


V2 = {"type": "se_atten_v2", "attn_layer": 0, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 2}


A = {"type": "se_e2_a", "sel": [5, 5], "rcut": 6.0, "neuron": [4], "axis_neuron": 2}


def training_input(folder, **changed):
    """Of 2 steps, with these sections changed, on three frames that are written there."""
    types, _, residue = atoms()
    (folder / "data" / "set.000").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "type_map.raw").write_text("O H")
    (folder / "data" / "nopbc").touch()
    np.savetxt(folder / "data" / "type.raw", types, fmt="%d")
    random = np.random.default_rng(3)
    frames = {
        "coord": np.stack(
            [atoms()[1].ravel() + random.normal(scale=0.02, size=3 * len(types)) for _ in range(3)]
        ),
        "box": np.tile(np.eye(3).ravel() * 50, (3, 1)),
        "energy": random.normal(size=3) - 40,
        "force": random.normal(size=(3, 3 * len(types))),
        "aparam": np.tile(residue.astype(float), (3, 1)),
    }
    for name, values in frames.items():
        np.save(folder / "data" / "set.000" / f"{name}.npy", values)
    fitting = {"neuron": [6, 6], "atom_ener": [None, 0.0]}
    quantum = {"descriptor": {**V2, "rcut": 6.0, "sel": 10}, "fitting_net": fitting}
    near = {**V2, "rcut": 4.5, "sel": 8, "set_davg_zero": True, "exclude_types": [[0, 0]]}
    model = {
        "type": "pairwise_dprc",
        "type_map": ["O", "H"],
        "type_embedding": {"neuron": [3, 5], "activation_function": "tanh"},
        "qm_model": quantum,
        "qmmm_model": {"descriptor": near, "fitting_net": {**fitting, "atom_ener": [0.0, 0.0]}},
    }
    for place, value in changed.items():
        at, *path = reversed(place.split("__"))
        section = model
        for name in reversed(path):
            section = section[name]
        section[at] = value
    training = {"training_data": {"systems": [str(folder / "data")]}, "numb_steps": 2, "seed": 1}
    return {"model": model, "training": {**training, "precision": "float64", "disp_freq": 1, "save_freq": 1}}


def test_it_is_trained_with_one_embedding_of_types(tmp_path):
    """The loss falls, and a model that is read again has the answers of the trained one."""
    tree = training_input(tmp_path)
    tree["training"]["numb_steps"] = 30
    first = train(tree, tmp_path / "first")
    model = first.model
    quantum, pairs = (part.descriptors[0] for part in model.models)
    assert quantum.type_embedding is pairs.type_embedding and quantum.type_embedding.net.inputs == 2
    assert [part.out_bias.tolist()[1] for part in model.models] == [0.0, 0.0]  # given by atom_ener
    assert abs(model.models[0].out_bias[0]) > 1 and not model.models[1].out_bias.any()
    assert quantum.options.cubic_switch == 1.0 and not quantum.options.zero_padding
    curve = np.loadtxt(tmp_path / "first" / "lcurve.out")
    assert curve[-1, 1] < 0.9 * curve[0, 1]
    read, (types, positions, residue) = (
        load(tmp_path / "first" / "model.safetensors", dtype="float64"),
        atoms(),
    )
    assert read.model.models[0].descriptor.type_embedding is read.model.models[1].descriptor.type_embedding
    found, wanted = (evaluated(p, [(types, positions)], [residue]) for p in (read, first))
    np.testing.assert_allclose(found["forces"], wanted["forces"], rtol=1e-6, atol=1e-7)


def test_an_atom_alone_has_the_energy_that_was_given(tmp_path):
    """Its type's numbers are no part of it, exactly and by splines; as in TensorFlow."""
    train(training_input(tmp_path, qm_model__fitting_net__atom_ener=[-3.0, -1.5]), tmp_path / "run")
    for spline in (False, True):
        potential = load(tmp_path / "run" / "model.safetensors", dtype="float64", spline=spline)
        potential.model.models[0].descriptor.mean.zero_()
        one = (np.array([0, 1]), np.array([[0.0, 0, 0], [30.0, 0, 0]]))
        found = evaluated(potential, [one], [np.zeros(2)])
        np.testing.assert_allclose(found["atom_energy"], [-3.0, -1.5], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("word", "more"), [("finetune", {}), ("init_model", {}), ("finetune", {"use_pretrain_script": True})]
)
def test_a_training_begins_with_the_file_of_the_same_input(tmp_path, word, more):
    tree = training_input(tmp_path)
    first = train(tree, tmp_path / "first")
    given = {word: tmp_path / "first" / "model.safetensors", **more}
    begun = Trainer(parse_config(tree), tmp_path / "second", **given).potential
    for own, theirs in zip(begun.model.models, first.model.models, strict=True):
        assert torch.equal(own.descriptors[0].type_embedding(), theirs.descriptors[0].type_embedding())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"qm_model": None}, r"model\.qm_model: expected a section in braces"),
        ({"qm_model__descriptor": A}, "expected one of se_atten"),
        ({"qm_model__descriptor__sel": "auto"}, r"qm_model\.descriptor\.sel: is 'auto', expected a number"),
        (
            {"qmmm_model__descriptor__set_davg_zero": False},
            "set_davg_zero: has to be true beside exclude_types",
        ),
        ({"qm_model__fitting_net__numb_aparam": 1}, "that of atoms is their residue"),
        (
            {"qmmm_model__type_map": ["H", "O"]},
            r"qmmm_model\.type_map: is \['H', 'O'\], expected that of the whole",
        ),
    ],
)
def test_inputs_that_do_not_go_are_refused(tmp_path, changed, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(training_input(tmp_path, **changed))
