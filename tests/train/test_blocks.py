"""Trainings whose systems are drawn by the weights of blocks, and from which large systems are left out."""

import json

import ase.io
import numpy as np
import pytest
import torch
from processes import together
from small_systems import alloy, stop_after, write_system
from test_branches import tree as branches_tree

from mdops.cli import main
from mdops.errors import ConfigError, DataError
from mdops.train import Trainer, load_dataset
from mdops.train.config.read import parse_config, parse_input
from mdops.train.loop.factories import make_sampler

BLOCKS = "prob_sys_size;0:2:0.25;2:3:0.75"
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*energies change", "ignore:.*pressures are", "ignore:.*farthest will be dropped"
)


@pytest.fixture
def folder(tmp_path):
    """Systems of 4, 8 and 4 atoms, with 5, 3 and 2 frames, and one of 16 atoms after the first."""
    systems = ((5, (1, 1, 1)), (3, (2, 2, 1)), (3, (2, 1, 1)), (2, (1, 1, 1)))
    for k, (frames, repeat) in enumerate(systems):
        write_system(tmp_path / "large" / str(k), alloy(frames, seed=k, repeat=repeat))
        if k != 1:
            write_system(tmp_path / "small" / str(k), alloy(frames, seed=k, repeat=repeat))
    return tmp_path


def tree(folder, name, rule, **training):
    data = {"systems": str(folder / name), "batch_size": rule, "auto_prob_style": BLOCKS}
    return {
        "model": {
            "type_map": ["Cu", "Al"],
            "descriptor": {"rcut": 4.0, "neuron": [4, 8], "axis_neuron": 3, "rcut_smth": 2.0},
            "fitting_net": {"neuron": [12, 12]},
        },
        "training": {
            "training_data": data,
            "validation_data": dict(data),
            "numb_steps": 9,
            "seed": 5,
            "disp_freq": 3,
            "save_freq": 4,
            **training,
        },
    }


def weights(trainer):
    return list(trainer.potential.state_dict().values())


@pytest.mark.filterwarnings("ignore:.*frames are left out")
def test_a_training_is_that_of_the_small_systems(folder):
    """From its statistics to its restart, with blocks of the systems that are left, as in DeePMD-kit."""
    trainers = {}
    for name, rule in (("small", "max:8"), ("large", "filter:8")):
        trainers[name] = Trainer(parse_config(tree(folder, name, rule)), folder / f"of_{name}")
        for frames in (trainers[name].frames, trainers[name].validation):
            assert [system[-1] for system in frames.data.systems] == ["0", "2", "3"]
            assert frames.sampler.batches == 3 + 3 + 1 and frames.sampler.epoch == 24  # 3 / (0.25 * 0.5)
    for a, b in zip(*map(weights, trainers.values()), strict=True):
        assert torch.equal(a, b)
    trainers["small"].run()
    with pytest.raises(KeyboardInterrupt):
        trainers["large"].run(stop_after(6))
    again = Trainer(parse_config(tree(folder, "large", "filter:8")), folder / "of_large", restart=True)
    assert again.step == 4
    again.run()
    for a, b in zip(weights(trainers["small"]), weights(again), strict=True):
        assert torch.equal(a, b)
    curves = [(folder / f"of_{name}" / "lcurve.out").read_bytes() for name in trainers]
    assert curves[0] == curves[1]


def train(folder, output, *given):
    Trainer(parse_config(tree(folder, *given, precision="float64")), output).run()


@pytest.mark.filterwarnings("ignore:.*frames are left out")
def test_processes_draw_the_same_systems(folder):
    assert together(folder, train, folder, folder / "two", "large", "filter:8") == [0, 0]
    train(folder, folder / "one", "small", "max:8")
    one, two = (np.loadtxt(folder / name / "lcurve.out") for name in ("one", "two"))
    assert len(one) == 4
    np.testing.assert_allclose(two, one, rtol=1e-6)


def test_epochs_count_the_weights(folder):
    given = tree(folder, "small", 2, numb_epoch=2)
    del given["training"]["numb_steps"]
    assert Trainer(parse_config(given), folder / "run").steps == 2 * 20  # 3 / (0.25 * 3 / 5)


@pytest.mark.filterwarnings("ignore:.*frames are left out")
def test_every_branch_has_its_own_blocks(folder):
    given = branches_tree({"a": str(folder / "large"), "b": str(folder / "large")})
    given["training"]["data_dict"]["two"]["training_data"] |= {"batch_size": "filter:8", "auto_prob": BLOCKS}
    trainer = Trainer(parse_input(given), folder / "run")
    samplers = {name: branch.frames.sampler for name, branch in trainer.branches.items()}
    assert (samplers["one"].epoch, samplers["two"].epoch) == (13, 24)
    given["training"]["data_dict"]["two"]["training_data"]["auto_prob"] = "prob_sys_size;0:1"
    with pytest.raises(ConfigError, match=r"in the model two: training\.training_data\.auto_prob: is"):
        parse_input(given)


@pytest.mark.filterwarnings("ignore:.*frames are left out")
def test_validation_data_have_their_own_limit(folder):
    given = tree(folder, "small", 2)
    given["training"]["validation_data"] = {"systems": str(folder / "large"), "batch_size": "filter:4"}
    trainer = Trainer(parse_config(given), folder / "run")
    assert (len(trainer.frames.data), len(trainer.validation.data)) == (10, 7)
    given["training"]["validation_data"]["batch_size"] = "filter:3"
    with pytest.raises(DataError, match="no frame is left: all 13 have more than 3 atoms"):
        Trainer(parse_config(given), folder / "none")


def test_frames_for_the_validation_are_chosen_before(folder):
    """A file of frames of two sizes: which frames are left out of the training does not depend on their sizes."""
    structures = [alloy(1, seed=k, repeat=(1 + k % 2, 1, 1))[0] for k in range(9)]
    ase.io.write(folder / "data.extxyz", structures)
    given = tree(folder, "data.extxyz", "filter:4", numb_steps=1)
    del given["training"]["validation_data"]
    given["training"]["training_data"] |= {"leave_out": 3, "auto_prob_style": "prob_sys_size"}
    with pytest.warns(UserWarning, match=r"3 of 6 frames are left out, because they have more than 4 atoms"):
        trainer = Trainer(parse_config(given), folder / "run")
    data = trainer.frames.data
    assert [data.name(k)[-1] for k in range(len(data))] == ["0", "4", "6"]


@pytest.mark.parametrize("section", ["training_data", "validation_data"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("auto_prob", "prob_sys_size;0:1:-1"), ("auto_prob", "size"), ("batch_size", "filter:0")],
)
def test_wrong_values_are_refused_with_their_place(tmp_path, section, key, value):
    given = tree(tmp_path, "data", 1)
    del given["training"][section]["auto_prob_style"]
    given["training"][section][key] = value
    with pytest.raises(ConfigError, match=rf"^training\.{section}\.{key}: is '{value}', expected"):
        parse_config(given)


def test_odds_of_systems_come_before_blocks(folder):
    data = load_dataset(folder / "small", ["Cu", "Al"])
    given = tree(folder, "small", 1)
    given["training"]["training_data"]["sys_probs"] = [0, 0, 1]
    sampler = make_sampler(parse_config(given).training.training_data, data, seed=1)
    assert {int(data.system[f]) for step in range(20) for f in sampler(step)} == {2}


def test_batches_of_any_systems_have_no_blocks(folder):
    with pytest.raises(ConfigError, match=r'auto_prob.*"mixed:n" are of any systems'):
        Trainer(parse_config(tree(folder, "small", "mixed:2")), folder / "run")


def test_the_command_says_what_was_left_out(folder, capsys):
    (folder / "input.json").write_text(json.dumps(tree(folder, "large", "filter:8", numb_steps=1)))
    assert main(["train", str(folder / "input.json"), "-o", str(folder / "run")]) == 0
    assert "3 of 13 frames are left out, because they have more than 8 atoms" in capsys.readouterr().err


def test_large_frames_of_lmdb_are_left_out(folder):
    """As in DeePMD-kit."""
    pytest.importorskip("lmdb")
    assert main(["convert-data", str(folder / "large"), str(folder / "data.lmdb")]) == 0
    assert len(load_dataset(folder / "data.lmdb", ["Cu", "Al"], most_atoms=4)) == 7
