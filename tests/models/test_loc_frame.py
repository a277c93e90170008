"""loc_frame: neighbours in a frame that two of them span."""

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from graphs import model_graph, wire
from small_systems import write_system

from mdops.calculator import MDOps
from mdops.errors import ConfigError, InputError, ModelFileError
from mdops.io import read_model, write_model
from mdops.loading import load
from mdops.models.loc_frame import LocFrame, LocFrameOptions
from mdops.models.registry import find
from mdops.potential import Potential
from mdops.system import from_atoms
from mdops.train import Trainer, parse_config

RULES = {
    "types": [0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0],
    "any": [0, -3, 0, 0, -3, 1, 0, -2, 1, 0, -1, 0],  # of any type, and of any but one
    "radial": [1, 1, 0, 0, 1, 0, 1, -2, 1, 0, 1, 1],
    "none": [],
}


def config_of(systems="none", rule="types", **more):
    descriptor = {
        "type": "loc_frame",
        "rcut": 4.5,
        "sel_a": [3, 4],
        "sel_r": [5, 6],
        "axis_rule": RULES[rule],
        **more,
    }
    model = {"type_map": ["O", "H"], "descriptor": descriptor, "fitting_net": {"neuron": [8, 8], "seed": 1}}
    training = {"training_data": {"systems": systems}, "numb_steps": 4, "seed": 1, "precision": "float64"}
    weights = {f"{end}_pref_{of}": 1 for end in ("start", "limit") for of in "ef"}
    return parse_config({"model": model, "loss": weights, "learning_rate": {}, "training": training})


def potential(**more):
    model = find("model", "standard").random(config_of(**more).model, 1, torch.float64)
    d, random = model.descriptor, np.random.default_rng(4)
    d.mean.copy_(torch.from_numpy(random.uniform(0, 0.2, d.mean.shape)))
    d.std.copy_(torch.from_numpy(random.uniform(0.05, 0.2, d.std.shape)))
    return Potential(model)


def water(periodic=True, seed=2):
    random = np.random.default_rng(seed)
    places = 2.0 * np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)[:18]
    atoms = Atoms("OHHHHO" * 3, places + random.normal(0, 0.15, (18, 3)))
    if periodic:
        atoms.set_cell([6.0, 6.0, 7.0])
        atoms.pbc = True
    return atoms


def by_hand(d, atoms):
    """The numbers of each atom, neighbour by neighbour."""
    o, found = d.options, []
    types = np.array(["OH".index(s) for s in atoms.symbols])
    shifts = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3), -1).reshape(-1, 3) * atoms.pbc[0]
    for i, c in enumerate(types):
        vectors = (
            atoms.positions[None] + np.unique(shifts, axis=0)[:, None] @ atoms.cell.array
        ) - atoms.positions[i]
        vectors, kinds = vectors.reshape(-1, 3), np.tile(types, len(np.unique(shifts, axis=0)))
        r = np.linalg.norm(vectors, axis=1)
        full, rest = [], []
        for t in range(2):
            near = [j for j in np.argsort(r) if 1e-9 < r[j] < o.rcut and kinds[j] == t]
            full.append([vectors[j] for j in near[: o.sel_a[t]]])
            rest.append([vectors[j] for j in near[o.sel_a[t] : o.sel_a[t] + o.sel_r[t]]])

        def axis(which, kind, number, lists=(full, rest)):
            if kind >= 0:
                return lists[which][kind][number]
            left_out = -kind if which else -kind - 1
            every = [v for t in range(2) if t != left_out for v in lists[which][t][:3]]
            return sorted(every, key=np.linalg.norm)[number]

        rule = o.axis_rule[6 * c : 6 * c + 6]
        nearest = full[0] + full[1]
        first, second = (axis(*rule[:3]), axis(*rule[3:])) if rule else nearest[:2]
        cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        if cosine < -1 + 1e-4:
            second = axis(rule[3], rule[4], rule[5] + 1)
        x = first / np.linalg.norm(first)
        y = second - (second @ x) * x
        y /= np.linalg.norm(y)
        frame, numbers = np.array([x, y, np.cross(x, y)]), []
        for t in range(2):
            own = np.zeros((o.sel_a[t], 4))
            for k, v in enumerate(full[t]):
                local = frame @ v
                own[k] = [1 / np.linalg.norm(v), *(local[[2, 0, 1]] / (v @ v))]
            numbers += list(own.ravel())
        for t in range(2):
            own = np.zeros(o.sel_r[t])
            own[: len(rest[t])] = [1 / np.linalg.norm(v) for v in rest[t]]
            numbers += list(own)
        found.append((numbers - d.mean[c].numpy()) / d.std[c].numpy())
    return np.array(found)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_its_numbers_are_those_of_every_neighbour(rule, periodic):
    model, atoms = potential(rule=rule), water(periodic)
    found = model.descriptors(from_atoms([atoms], model.type_map))
    np.testing.assert_allclose(found.numpy(), by_hand(model.model.descriptor, atoms), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", RULES)
def test_forces_and_virials_are_derivatives(rule, tmp_path):
    model, atoms = potential(rule=rule), water()
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", dtype="float64")
    found = again.compute(atoms)
    for key, value in model.compute(atoms).items():
        np.testing.assert_array_equal(found[key], value)
    step = 1e-5 * np.random.default_rng(1).normal(size=(18, 3))
    strain = np.eye(3) + 1e-5 * np.array([[1, 0.3, 0], [0.3, -1, 0.2], [0, 0.2, 0.5]])
    for change, wanted in ((step, (found["forces"] * step).sum()), (strain, None)):
        energies = []
        for sign in (1, -1):
            moved = atoms.copy()
            if wanted is not None:
                moved.positions += sign * change
            else:
                moved.set_cell(atoms.cell.array @ (np.eye(3) + sign * (change - np.eye(3))), scale_atoms=True)
            energies.append(again.compute(moved)["energy"][0])
        of = wanted if wanted is not None else (found["virial"][0] * (change - np.eye(3))).sum()
        assert (energies[1] - energies[0]) / 2 == pytest.approx(of, rel=1e-5)
    atoms.calc = MDOps(again)
    turned = atoms.copy()
    turned.rotate(40, (1, 2, 3), rotate_cell=True)
    assert again.compute(turned)["energy"] == pytest.approx(found["energy"], rel=1e-12)


def test_opposite_axes_take_the_next_neighbour():
    """The first two hydrogens are on both sides; without the third there is an error."""
    model = potential()
    atoms = Atoms("OHHHO", [[0, 0, 0], [0, 0, 1.0], [0, 0, -1.1], [1.2, 0, 0], [0, 2.9, 0.4]])
    found = model.descriptors(from_atoms([atoms], model.type_map))
    np.testing.assert_allclose(found.numpy(), by_hand(model.model.descriptor, atoms), rtol=1e-10, atol=1e-12)
    with pytest.raises(InputError, match=r"atom 0 \(O\) lacks the neighbours that the axes"):
        model.compute(atoms[[0, 1, 2, 4]])


def test_it_learns_statistics_and_trains(tmp_path):
    random, structures = np.random.default_rng(0), [water(seed=k) for k in range(3)]
    for atoms in structures:
        forces = random.normal(size=(18, 3))
        atoms.calc = SinglePointCalculator(atoms, energy=random.normal(), forces=forces, stress=np.zeros(6))
    folder = write_system(tmp_path / "data", structures, ("O", "H"))
    trainer = Trainer(config_of(str(folder)), folder=tmp_path / "run")
    d = trainer.potential.model.descriptor
    plain = LocFrame.random(d.options, "OH", [0], torch.float64)
    frames = [by_hand(plain, atoms) for atoms in structures]
    types = np.array(["OH".index(s) for s in water().symbols])
    for t in range(2):
        of_type = np.concatenate([numbers[types == t] for numbers in frames])
        np.testing.assert_allclose(d.mean[t], of_type.mean(0), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(d.std[t], np.maximum(of_type.std(0), 1e-2), rtol=1e-7)
    before = d.mean.clone(), trainer.potential.model.fitting.net(0).layers[0].weight.clone()
    trainer.run()
    model = load(tmp_path / "run" / "model.safetensors", dtype="float64")
    assert torch.equal(model.model.descriptor.mean, before[0])
    assert not torch.equal(model.model.fitting.net(0).layers[0].weight, before[1])


def test_a_graph_is_read(tmp_path):
    model = potential(rule="any")
    model.save(tmp_path / "model.json")
    tree = read_model(tmp_path / "model.json").model
    (tmp_path / "graph.pb").write_bytes(wire(model_graph(tree)))
    read = load(tmp_path / "graph.pb", dtype="float64")
    for key, value in model.compute(water()).items():
        np.testing.assert_allclose(read.compute(water())[key], value, rtol=1e-13, atol=1e-14)
    tree["descriptor"]["sel_a"] = [3, 4, 1]
    (tmp_path / "graph.pb").write_bytes(wire(model_graph(tree)))
    with pytest.raises(ModelFileError, match="sel_a"):
        read_model(tmp_path / "graph.pb")
    with pytest.raises(
        ModelFileError, match=r"not written: its descriptor loc_frame is of the TensorFlow backend"
    ):
        model.save(tmp_path / "model.dp")


def test_rules_of_further_types_and_a_seed_have_no_effect(recwarn):
    rules = RULES["types"]
    assert config_of(axis_rule=[*rules, 0, 5, 9, 0, 0, 0], seed=1) == config_of() and not recwarn.list


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sel_a": [3]}, r"sel_a: has 1 numbers for 2 types"),
        ({"axis_rule": [0, 0, 0, 0, 1, 1]}, r"axis_rule: has 6 numbers for 2 types"),
        (
            {"axis_rule": [0, 0, 3, 0, 1, 1] * 2},
            r"axis_rule: has \[0, 0, 3\], and there is no such neighbour",
        ),
        (
            {"axis_rule": [2, 0, 0, 0, 1, 1] * 2},
            r"axis_rule: has \[2, 0, 0\], and there is no such neighbour",
        ),
        ({"sel_a": [0, 0], "sel_r": [0, 0], "axis_rule": []}, r"sel_a: there is no place for a neighbour"),
    ],
)
def test_wrong_options_are_refused(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        config_of(**changes)
    model = potential()
    model.save(tmp_path / "model.json")
    tree = read_model(tmp_path / "model.json").model
    tree["descriptor"] |= changes
    write_model(tmp_path / "wrong.json", tree)
    with pytest.raises(ModelFileError):
        read_model(tmp_path / "wrong.json")


def test_options_stand_in_the_input_that_a_file_says():
    model = potential()
    definition = LocFrame.definition_of_tree(model.model.descriptor.to_tree())
    assert {k: definition[k] for k in ("sel_a", "sel_r", "axis_rule", "rcut")} == {
        "sel_a": [3, 4], "sel_r": [5, 6], "axis_rule": RULES["types"], "rcut": 4.5
    }  # fmt: skip
    assert LocFrameOptions.from_tree(model.model.descriptor.to_tree()) == model.model.descriptor.options
