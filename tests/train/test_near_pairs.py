"""Frames in which two atoms are too near to each other are left out of trainings, whatever file they are in."""

import json
import math

import ase.io
import numpy as np
import pytest
import torch
from processes import together
from small_systems import EMT, alloy, stop_after, write_system
from test_branches import tree as branches_tree
from test_dataset import same

from mdops.cli import main
from mdops.data.frame_set import FrameSet
from mdops.data.near_pairs import near_pairs
from mdops.data.sampler import Sampler
from mdops.errors import ConfigError, DataError, InputError
from mdops.train import Trainer, load_dataset
from mdops.train.config.read import parse_config, parse_input

TYPES = ["Cu", "Al"]
NEAR = [1, 2, 4]  # frames of `structures`


def spoil(atoms, image=(0, 0, 0)):
    """Puts an atom 0.3 A beside a periodic image of another."""
    atoms.positions[1] = atoms.positions[6] + [0.0, 0.3, 0.0] + np.array(image) @ atoms.cell.array
    atoms.get_forces(), atoms.get_stress()


@pytest.fixture
def structures():
    frames = alloy(7)
    for frame, image in zip(NEAR, [(0, 0, 0), (1, 0, -1), (0, 2, 0)], strict=True):
        spoil(frames[frame], image)
    return frames


def write_mixed(folder, structures):
    """In the mixed format, with a place without an atom, which stands on an atom."""
    (folder / "set.000").mkdir(parents=True)
    (folder / "type.raw").write_text("0\n" * 9)
    (folder / "type_map.raw").write_text("Cu\nAl\n")
    arrays = {
        "real_atom_types": [[TYPES.index(s) for s in a.symbols] + [-1] for a in structures],
        "coord": [[*a.positions.ravel(), *a.positions[0]] for a in structures],
        "force": [[*a.get_forces().ravel(), 0, 0, 0] for a in structures],
        "box": [a.cell.array.ravel() for a in structures],
        "energy": [a.get_potential_energy() for a in structures],
        "virial": [-a.get_volume() * a.get_stress(voigt=False).ravel() for a in structures],
    }
    for name, array in arrays.items():
        np.save(folder / "set.000" / f"{name}.npy", array)


@pytest.mark.parametrize("kind", ["system", "mixed", "extxyz", "lmdb"])
def test_frames_are_left_out_of_every_kind_of_data(tmp_path, structures, kind):
    path = tmp_path / f"data.{kind}"
    if kind == "system":
        write_system(path, structures)
    elif kind == "mixed":
        write_mixed(path, structures)
    else:
        ase.io.write(tmp_path / "data.extxyz", structures)
    if kind == "lmdb":
        pytest.importorskip("lmdb")
        assert main(["convert-data", str(tmp_path / "data.extxyz"), str(path)]) == 0
    with pytest.warns(
        UserWarning, match=r"3 of 7 frames are left out, .* = 1 A: .*data.*: 3 of 7$"
    ) as caught:
        data = load_dataset(path, TYPES, min_pair_dist=1.0)
    assert len(caught) == 1
    kept = [k for k in range(7) if k not in NEAR]
    same(data, [structures[k] for k in kept])
    assert [data.name(k).rpartition(" ")[2] for k in range(4)] == [str(k) for k in kept]
    same(load_dataset(path, TYPES), structures)
    same(load_dataset(path, TYPES, min_pair_dist=0.29), structures)


# What DeePMD-kit 3.2.0 leaves out of the frames below (deepmd.dpmodel.utils.dist_check).
DEEPMD = {
    True: [1, 4, 8, 9, 11, 13, 15, 18, 19, 20, 21, 22, 23, 27, 29, 32, 35, 36, 37, 39],
    False: [32],
}


@pytest.mark.parametrize("periodic", [True, False])
def test_they_are_those_that_deepmd_kit_leaves_out(periodic):
    cell = np.array([[6.0, 0, 0], [4.0, 5.0, 0], [-3.0, 2.0, 5.5]])
    positions = np.random.default_rng(7).uniform(-1, 2, (40, 12, 3)) @ cell
    block = FrameSet(
        *("data", "data", 0),
        positions,
        np.tile(np.arange(12, dtype=np.int32) % 2, (40, 1)),
        np.tile(cell, (40, 1, 1)),
        np.full(3, periodic),
    )
    assert np.flatnonzero(near_pairs(block, 0.8)).tolist() == DEEPMD[periodic]


def test_a_pair_at_the_distance_itself_counts(tmp_path):
    (atoms,) = alloy(1)
    atoms.positions[:2] = [0.0, 0.0, 0.0], [0.0, 0.0, 0.5]
    block = FrameSet(
        *("data", "data", 0),
        atoms.positions[None],
        np.zeros((1, 8), dtype=np.int32),
        atoms.cell.array[None],
        np.full(3, True),
    )
    assert not near_pairs(block, 0.5).any() and near_pairs(block, np.nextafter(0.5, 1)).all()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("box", lambda box: 0 * box, "the cell has no volume"),
        ("coord", lambda coord: np.nan * coord, "positions is nan at atom 0"),
        ("coord", lambda coord: np.append(coord[:3] + 1e4, coord[3:]), "wrap the argument `positions`"),
    ],
)
def test_frames_that_cannot_be_searched_are_named(tmp_path, structures, name, value, message):
    path = write_system(tmp_path / "data", structures)
    array = np.load(path / "set.000" / f"{name}.npy")
    array[3] = value(array[3])
    np.save(path / "set.000" / f"{name}.npy", array)
    with pytest.raises(DataError, match=rf"set\.000, frame 3: .*{message}"):
        load_dataset(path, TYPES, min_pair_dist=3.0)


def test_data_without_other_frames_are_refused(tmp_path, structures):
    path = write_system(tmp_path / "data", [structures[k] for k in NEAR])
    with pytest.raises(
        DataError, match=r"data: no frame is left: in each of the 3 frames two atoms .* = 1 A"
    ):
        load_dataset(path, TYPES, min_pair_dist=1.0)


def test_a_system_without_other_frames_keeps_its_place(tmp_path, structures):
    for k, chosen in enumerate(([0, 1], NEAR, [3, 5, 6])):
        write_system(tmp_path / f"data_{k}", [structures[f] for f in chosen])
    with pytest.warns(UserWarning, match=r"4 of 8 frames .*data_0: 1 of 2; .*data_1: 3 of 3$"):
        data = load_dataset(tmp_path, TYPES, min_pair_dist=1.0)
    assert len(data.systems) == 3 and data.system.tolist() == [0, 2, 2, 2]
    for rule in ([1, 2, 3], "auto", "mixed:9"):
        sampler = Sampler(data, rule, seed=1)
        frames = np.concatenate([sampler(k) for k in range(sampler.batches)])
        assert sorted(frames) == [0, 1, 2, 3]
    sampler = Sampler(data, 1, seed=1, odds=[1.0, 8.0, 1.0])
    drawn = [data.system[sampler(step)][0] for step in range(40)]
    assert {*drawn} == {0, 2} and 10 < drawn.count(0) < 30
    with pytest.raises(ConfigError, match="a positive one of a system with frames"):
        Sampler(data, 1, seed=1, odds=[0.0, 1.0, 0.0])


def tree(folder, distance, name="training", **more):
    return {
        "model": {
            "type_map": TYPES,
            "descriptor": {"rcut": 4.0, "neuron": [4, 8], "axis_neuron": 3, "rcut_smth": 2.0},
            "fitting_net": {"neuron": [12, 12]},
        },
        "training": {
            "training_data": {
                "systems": str(folder / name),
                "batch_size": 2,
                "min_pair_dist": distance,
                **more,
            },
            "validation_data": {"systems": str(folder / "training")},
            "numb_steps": 9,
            "seed": 5,
            "disp_freq": 3,
            "save_freq": 4,
        },
    }


@pytest.fixture
def folder(tmp_path, structures):
    """Systems for training with near pairs and without, and one for each validation."""
    write_system(tmp_path / "training", structures)
    write_system(tmp_path / "rest", [a for k, a in enumerate(structures) if k not in NEAR])
    return tmp_path


def weights(trainer):
    return [value for value in trainer.potential.state_dict().values()]


@pytest.mark.filterwarnings(
    "ignore:.*frames are left out", "ignore:.*energies change", "ignore:.*pressures are"
)
def test_a_training_is_that_of_the_other_frames(folder):
    """From its statistics to its restart; validation data keep their frames."""
    trainers = {}
    for name, distance in (("rest", 0.0), ("training", 1.0)):
        (folder / f"of_{name}").mkdir()
        config = parse_config(tree(folder, distance, name))
        trainers[name] = Trainer(config, folder / f"of_{name}")
        assert (len(trainers[name].frames.data), len(trainers[name].validation.data)) == (4, 7)
    for a, b in zip(*map(weights, trainers.values()), strict=True):
        assert torch.equal(a, b)
    trainers["rest"].run()
    with pytest.raises(KeyboardInterrupt):
        trainers["training"].run(stop_after(6))
    again = Trainer(parse_config(tree(folder, 1.0)), folder / "of_training", restart=True)
    assert again.step == 4
    again.run()
    for a, b in zip(weights(trainers["rest"]), weights(again), strict=True):
        assert torch.equal(a, b)
    curves = [(folder / f"of_{name}" / "lcurve.out").read_bytes() for name in trainers]
    assert curves[0] == curves[1]


def train(folder, output, *given):
    Trainer(parse_config(tree(folder, *given)), output).run()


@pytest.mark.filterwarnings(
    "ignore:.*frames are left out", "ignore:.*energies change", "ignore:.*pressures are"
)
def test_processes_leave_out_the_same_frames(folder):
    for name, given in (("one", (0.0, "rest")), ("two", (1.0, "training"))):
        (folder / name).mkdir()
        assert together(folder, train, folder, folder / name, *given) == [0, 0]
    assert (folder / "one" / "lcurve.out").read_bytes() == (folder / "two" / "lcurve.out").read_bytes()


@pytest.mark.filterwarnings("ignore:.*energies change", "ignore:.*pressures are")
def test_every_branch_has_its_own_distance(folder, tmp_path):
    given = branches_tree({"a": str(folder / "training"), "b": str(folder / "training")})
    given["training"]["data_dict"]["two"]["training_data"]["min_pair_dist"] = 1.0
    given["training"]["data_dict"]["one"]["validation_data"]["systems"] = str(folder / "rest")
    (tmp_path / "run").mkdir()
    with pytest.warns(UserWarning, match="3 of 7 frames are left out"):
        trainer = Trainer(parse_input(given), tmp_path / "run")
    assert {name: len(b.frames.data) for name, b in trainer.branches.items()} == {"one": 7, "two": 4}


@pytest.mark.filterwarnings("ignore:.*energies change", "ignore:.*pressures are")
def test_frames_for_the_validation_are_chosen_before(folder):
    """Every third frame, of all that there are; these are not searched for near pairs."""
    config = tree(folder, 1.0, leave_out=3)
    del config["training"]["validation_data"]
    (folder / "run").mkdir()
    with pytest.warns(UserWarning, match=r"2 of 5 frames are left out"):
        trainer = Trainer(parse_config(config), folder / "run")
    names = [
        [data.name(k)[-1] for k in range(len(data))]
        for data in (trainer.frames.data, trainer.validation.data)
    ]
    assert names == [["0", "3", "6"], ["2", "5"]]


def test_the_command_says_what_was_left_out(folder, capsys):
    config = tree(folder, 1.0)
    config["training"] |= {"numb_steps": 1}
    (folder / "input.json").write_text(json.dumps(config))
    assert main(["train", str(folder / "input.json"), "-o", str(folder / "run")]) == 0
    err = capsys.readouterr().err
    assert err.count("3 of 7 frames are left out") == 1 and "4 frames" in err
    config["training"]["training_data"]["min_pair_dist"] = 100.0
    (folder / "input.json").write_text(json.dumps(config))
    assert main(["train", str(folder / "input.json"), "-o", str(folder / "none")]) == 2
    assert "no frame is left" in capsys.readouterr().err


@pytest.mark.parametrize("section", ["training_data", "validation_data"])
def test_what_the_key_may_be(tmp_path, section):
    given = tree(tmp_path, 0.0)
    given["training"][section]["min_pair_dist"] = -0.5
    with pytest.raises(ConfigError, match=rf"training\.{section}\.min_pair_dist"):
        parse_config(given)


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf, "0.5", None])
def test_what_the_argument_may_be(value):
    with pytest.raises(InputError, match=rf"^min_pair_dist is {value!r}, expected"):
        load_dataset(EMT, ["Cu", "Al"], min_pair_dist=value)
