"""se_e2_a whose nets take the types as embeddings: se_e2_a_tebd and se_a_ebd_v2."""

import copy

import numpy as np
import pytest
import torch
from ase import Atoms

from mdops.errors import ConfigError, ModelFileError
from mdops.io import read_model, write_model
from mdops.loading import load
from mdops.models import model_of_tree
from mdops.potential import Potential
from mdops.train import parse_config

ATTENTION = {"type": "se_atten_v2", "sel": 20, "rcut": 4.0, "rcut_smth": 3.5, "attn_layer": 0, "neuron": [4, 8],
             "axis_neuron": 3, "set_davg_zero": True}  # fmt: skip


def options_of(descriptor, **model):
    embedding = {"neuron": [2, 4], "seed": 3, **model.pop("type_embedding", {})}
    tree = {"type_map": ["O", "H"], "type_embedding": embedding, "descriptor": descriptor,
            "fitting_net": {"neuron": [6, 6]}, **model}  # fmt: skip
    data = {"training_data": {"systems": "none"}, "numb_steps": 1}
    return parse_config({"model": tree, "training": data, "loss": {}, "learning_rate": {}}).model


def own(kind, **more):
    return {
        "type": kind,
        "sel": [4, 6],
        "rcut": 4.0,
        "rcut_smth": 1.0,
        "neuron": [4, 8],
        "axis_neuron": 3,
        **more,
    }


def potential(options, mean=True, dtype=torch.float64):
    from mdops.models.registry import find

    torch.manual_seed(0)
    model = find("model", options.KIND).random(options, 1, dtype)
    random = np.random.default_rng(5)
    for part in model.descriptor.parts:
        of = random.uniform(0.05, 0.1, 2) if mean and not part.options.set_davg_zero else np.zeros(2)
        part.set_statistics(of, random.uniform(0.1, 0.3, (2, 2)))
    return Potential(model)


def water():
    random = np.random.default_rng(2)
    places = 1.7 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(-1, 3)[:7]
    return Atoms("OHHOHHH", places + random.normal(0, 0.1, (7, 3)))


def by_hand(d, atoms):
    """T of each atom, place by place, as in the file's formula."""
    types = np.array(["OH".index(s) for s in atoms.symbols])
    embedded = d.type_embedding().detach()
    nothing = torch.zeros_like(embedded[0])
    found = []
    for i, c in enumerate(types):
        mean, std, total = d.mean[c], d.std[c], torch.zeros(4, d.channels, dtype=torch.float64)
        for t in range(2):
            if d.excluded[c, t]:
                continue
            near = [j for j in np.flatnonzero(types == t) if j != i and atoms.get_distance(i, j) < d.cutoff]
            for place in range(d.sel[t]):
                there = place < len(near)
                row = torch.zeros(4, dtype=torch.float64)
                if there:
                    x = torch.from_numpy(atoms.positions[near[place]] - atoms.positions[i])
                    r = x.norm()
                    u = ((r - d.cutoff_smooth) / (d.cutoff - d.cutoff_smooth)).clamp(0, 1)
                    w = u**3 * (-6 * u**2 + 15 * u - 10) + 1
                    row = torch.cat([(w / r)[None], w * x / r**2])
                row = (row - torch.stack([mean, *3 * [mean * 0]])) / torch.stack([std[0], *3 * [std[1]]])
                of = embedded[t] if there or not d.options.strips_types else nothing
                pair = of if d.options.type_one_side else torch.cat([of, embedded[c]])
                if d.options.strips_types:
                    g = d.embeddings.net()(row[:1]) * (1 + d.type_nets.net()(pair))
                else:
                    g = d.embeddings.net()(torch.cat([row[:1], pair]))
                total += row[:, None] * g
        found.append(total / d.slots)
    return torch.stack(found)


@pytest.mark.parametrize("excluded", [[], [[0, 1]]])
@pytest.mark.parametrize("one_side", [False, True])
@pytest.mark.parametrize("kind", ["se_e2_a", "se_a_ebd_v2"])
def test_its_numbers_are_those_of_every_place(kind, one_side, excluded):
    options = options_of(own(kind, type_one_side=one_side, exclude_types=excluded))
    model, atoms = potential(options), water()
    d = model.model.descriptor
    t = by_hand(d, atoms)
    types = torch.tensor(["OH".index(s) for s in atoms.symbols])
    wanted = torch.cat([(t.transpose(1, 2) @ t[:, :, :3]).flatten(1), d.type_embedding()[types]], 1)
    system = model_system(model, atoms)
    torch.testing.assert_close(model.descriptors(system), wanted.detach(), rtol=1e-11, atol=1e-13)


def model_system(model, atoms):
    from mdops.system import from_atoms

    return from_atoms([atoms], model.type_map)


CASES = {
    "concat": ([own("se_e2_a")], True),
    "concat_excluded": ([own("se_e2_a", exclude_types=[[0, 0]])], True),
    "strip": ([own("se_a_ebd_v2")], False),
    "strip_mean": ([own("se_a_ebd_v2")], True),
    "hybrid": ([own("se_a_ebd_v2", exclude_types=[[0, 1]]), ATTENTION], True),
    "hybrid_of_own": ([own("se_e2_a"), own("se_a_ebd_v2")], False),
}


@pytest.mark.parametrize("name", CASES)
def test_splines_and_files_have_its_energies(name, tmp_path):
    """Energies and forces by whatever evaluator are those of the nets, before and after saving."""
    parts, mean = CASES[name]
    descriptor = parts[0] if len(parts) == 1 else {"type": "hybrid", "list": parts}
    fitting = {"neuron": [6, 6], "atom_ener": [None, 0.5]}
    model = potential(options_of(descriptor, fitting_net=fitting), mean)
    atoms = water()
    wanted = model.compute(atoms)
    numbers = 1e-5 * (np.eye(7)[3][:, None] * np.array([1, -1, 2]))
    ends = [atoms.copy(), atoms.copy()]
    ends[0].positions += numbers
    ends[1].positions -= numbers
    up, down = (model.compute(one)["energy"][0] for one in ends)
    assert (down - up) / 2 == pytest.approx(float((wanted["forces"] * numbers).sum()), rel=1e-5)
    model.save(tmp_path / "model.safetensors")
    for spline in (False, True):
        again = load(tmp_path / "model.safetensors", dtype="float64", spline=spline)
        found = again.compute(atoms)
        for key in ("energy", "forces", "virial"):
            scale = np.abs(wanted[key]).max()
            np.testing.assert_allclose(found[key], wanted[key], atol=(1e-6 if spline else 1e-12) * scale)
    alone = [model.compute(Atoms(s, [[0, 0, 0]]))["energy"][0] for s in "OH"]
    if not mean:
        assert alone == pytest.approx([0, 0], abs=1e-12)  # of which atom_ener is no more than the bias
    with pytest.raises(ModelFileError, match=r"not written: its .* TensorFlow backend"):
        model.save(tmp_path / "model.dp")


def test_parts_share_one_embedding_of_types(tmp_path):
    """Also in a file that is read, so that a training of it goes on with one."""
    descriptor = {"type": "hybrid", "list": [own("se_a_ebd_v2"), ATTENTION]}
    model = potential(options_of(descriptor))
    first, second = model.model.descriptor.parts
    assert first.type_embedding is second.type_embedding and first.width == 24 and second.width == 24 + 4
    model.save(tmp_path / "model.json")
    file = read_model(tmp_path / "model.json")
    one, two = model_of_tree(file.model).descriptor.parts
    assert one.type_embedding is two.type_embedding
    assert not model.model.fitting.vacuum[0] and len(model.model.fitting.nets) == 1
    changed = copy.deepcopy(file.model)
    changed["descriptor"]["list"][0]["type_embedding"]["embedding"]["layers"][0]["@variables"]["w"][0, 0] += 1
    one, two = model_of_tree(changed).descriptor.parts
    assert one.type_embedding is not two.type_embedding
    changed["descriptor"]["list"][0]["tebd_dim"] = 5
    write_model(tmp_path / "wrong.json", changed)
    with pytest.raises(ModelFileError, match=r"type_embedding.neuron"):
        read_model(tmp_path / "wrong.json")


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        ({"type": "se_e2_r"}, r"model.descriptor.type: 'se_e2_r' takes no embedding of types"),
        (
            {"type": "se_a_mask", "sel": [1, 2]},
            r"model.descriptor.type: se_a_mask takes no embedding of types",
        ),
        ({"type": "hybrid", "list": [own("se_e2_a"), {"type": "dpa3"}]}, r"list\[1\].type: 'dpa3' takes no"),
        (
            {**ATTENTION, "set_davg_zero": False, "exclude_types": [[0, 1]]},
            "set_davg_zero has to be true beside",
        ),
    ],
)
def test_other_descriptors_take_no_embedding(descriptor, message):
    with pytest.raises(ConfigError, match=message):
        options_of(descriptor)
