"""Several models that share weights are trained together, as DeePMD-kit's multi-task inputs say it."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from small_systems import alloy, write_system

import mdops
from mdops.cli import main
from mdops.data.statistics import neighborhoods, output_statistics
from mdops.errors import ConfigError
from mdops.models.statistics import environment_statistics
from mdops.train import Trainer
from mdops.train.config.read import parse_input

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def data(tmp_path):
    write_system(tmp_path / "a", alloy(4, seed=0))
    write_system(tmp_path / "b", alloy(6, seed=1, rattle=0.15, repeat=(2, 2, 1)))
    return {name: str(tmp_path / name) for name in ("a", "b")}


def tree(data, *, fitting=None, descriptor="shared", case=0, **training):
    """Two models of one descriptor, "one" on the data a and "two" on b; with `fitting` they share that, too."""
    part = {"neuron": [6, 6], "seed": 1, "dim_case_embd": case}
    shared = {
        "types": ["Cu", "Al"],
        "shared": {
            "type": "se_atten_v2", "rcut": 4.0, "rcut_smth": 2.0, "sel": 40, "neuron": [4, 8], "axis_neuron": 3,
            "attn_layer": 0, "tebd_dim": 4, "seed": 1,
        },
        "fit": part,
    }  # fmt: skip
    branch = {"type_map": "types", "descriptor": descriptor, "fitting_net": fitting or part}
    return {
        "model": {"shared_dict": shared, "model_dict": {name: copy.deepcopy(branch) for name in ("one", "two")}},
        "loss_dict": {name: {"type": "ener", "start_pref_v": 0.1, "limit_pref_v": 0.1} for name in ("one", "two")},
        "learning_rate": {"type": "exp", "start_lr": 0.003},
        "training": {
            "data_dict": {
                "one": {"training_data": {"systems": data["a"], "batch_size": 1},
                        "validation_data": {"systems": data["b"], "batch_size": 1}},
                "two": {"training_data": {"systems": data["b"], "batch_size": 2}},
            },
            "numb_steps": 12, "seed": 4, "disp_freq": 6, "save_freq": 6, "precision": "float64", **training,
        },
    }  # fmt: skip


def weights(potential):
    return {name: value.detach().clone() for name, value in potential.named_parameters()}


def test_shared_parts_are_one_and_learn_from_all(data, tmp_path):
    trainer = Trainer(parse_input(tree(data, model_prob={"one": 0.3, "two": 0.7})), tmp_path / "run")
    one, two = (trainer.branches[name].potential for name in ("one", "two"))
    assert one.model.descriptor is two.model.descriptor and one.model.fitting is not two.model.fitting
    before = [weights(one), weights(two)]
    found = environment_statistics(
        (near for b in trainer.branches.values() for near in neighborhoods(b.frames.data, b.frames.lists, 4.0)),
        ntypes=2, sel=[40], mixed=True, cutoff_smooth=2.0,
    )  # fmt: skip
    np.testing.assert_allclose(one.model.descriptor.std.numpy(), found.std, rtol=1e-12)
    for branch in trainer.branches.values():
        own = output_statistics(branch.frames.data).bias
        np.testing.assert_allclose(branch.potential.model.out_bias.numpy(), own, rtol=1e-10)
    trainer.run()
    assert one.model.descriptor is two.model.descriptor
    for potential, old in zip((one, two), before, strict=True):
        moved = [name for name, value in weights(potential).items() if not torch.equal(value, old[name])]
        assert any("fitting" in name for name in moved) and any("descriptor" in name for name in moved)
    taken = {name: branch.taken for name, branch in trainer.branches.items()}
    assert sum(taken.values()) == 12 and min(taken.values()) > 0
    loaded = [
        mdops.load(tmp_path / f"run/{name}/model.safetensors", dtype="float64") for name in ("one", "two")
    ]
    nets = [dict(model.model.descriptor.named_parameters()) for model in loaded]
    assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])
    assert loaded[0].source["head"] == "one" and loaded[0].source["training"]["frames"] == 4
    header = (tmp_path / "run/one/lcurve.out").read_text().splitlines()
    assert "rmse_f_val" in header[0] and len(header) == 4  # of steps 1, 6 and 12
    assert "rmse_f_val" not in (tmp_path / "run/two/lcurve.out").read_text()


@pytest.mark.parametrize("fitting", [None, "fit"])
def test_a_step_of_one_branch_is_that_of_a_training_of_it(data, tmp_path, fitting):
    """With all odds on one branch, and statistics of its data alone."""
    data = {"a": data["a"], "b": data["a"]}
    given = tree(data, fitting=fitting, case=2 if fitting else 0, model_prob={"one": 1.0, "two": 0.0})
    given["training"]["data_dict"]["two"] = {"training_data": {"systems": data["a"], "batch_size": 1}}
    trainer = Trainer(parse_input(given), tmp_path / "several")
    begun = tmp_path / "begun.safetensors"
    trainer.branches["one"].potential.save(begun, core=())
    trainer.run()
    alone = copy.deepcopy(given["model"]["shared_dict"])
    single = {
        "model": {"type_map": alone["types"], "descriptor": alone["shared"], "fitting_net": alone["fit"]},
        "loss": given["loss_dict"]["one"],
        "learning_rate": given["learning_rate"],
        "training": {**given["training"], **given["training"]["data_dict"]["one"]},
    }
    for name in ("data_dict", "model_prob"):
        single["training"].pop(name)
    found = Trainer(parse_input(single), tmp_path / "one", init_model=begun).run()
    for a, b in zip(found.parameters(), trainer.branches["one"].potential.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_a_shared_fitting_tells_models_by_their_case(data, tmp_path):
    trainer = Trainer(parse_input(tree(data, fitting="fit", case=3)), tmp_path)
    one, two = (trainer.branches[name].potential.model.fitting for name in ("one", "two"))
    assert one.nets is two.nets and one.case_embedding.tolist() == [1, 0, 0]
    assert two.case_embedding.tolist() == [0, 1, 0]
    biases = [trainer.branches[name].potential.model.out_bias for name in ("one", "two")]
    assert not torch.equal(*biases)
    with pytest.raises(ConfigError, match="one for each of the 2 models"):
        Trainer(parse_input(tree(data, fitting="fit", case=1)), tmp_path / "narrow")


def test_a_restart_ends_with_the_same_bits(data, tmp_path):
    given = tree(data, fitting="fit", case=2, enable_ema=True)
    whole = Trainer(parse_input(given), tmp_path / "whole")
    whole.run()
    cut = Trainer(parse_input(given), tmp_path / "cut")
    cut.steps = 6
    cut.run()
    again = Trainer(parse_input(given), tmp_path / "cut", restart=True)
    assert again.step == 6 and sum(b.taken for b in again.branches.values()) == 6
    again.run()
    for name in ("one", "two"):
        files = [tmp_path / folder / name / "model.safetensors" for folder in ("whole", "cut")]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert (tmp_path / "whole" / name / "lcurve.out").read_text() == (
            tmp_path / "cut" / name / "lcurve.out"
        ).read_text()
    other = copy.deepcopy(given)
    other["model"]["model_dict"]["three"] = other["model"]["model_dict"]["two"]
    other["training"]["data_dict"]["three"] = other["training"]["data_dict"]["two"]
    with pytest.raises(
        ConfigError, match="is of a training of one, two, and the input is of one, two, three"
    ):
        Trainer(parse_input(other), tmp_path / "cut", restart=True)


def test_epochs_say_how_long_and_how_often(data, tmp_path):
    given = tree(data, num_epoch_dict={"one": 2, "two": 4})
    given["training"].pop("numb_steps")
    trainer = Trainer(parse_input(given), tmp_path)
    assert trainer.steps == 2 * 4 + 4 * 3
    np.testing.assert_allclose(trainer.odds, [8 / 20, 12 / 20])


def test_without_odds_systems_are_counted(data, tmp_path):
    given = tree(data)
    given["training"]["data_dict"]["two"]["training_data"]["systems"] = [data["a"], data["b"]]
    np.testing.assert_allclose(Trainer(parse_input(given), tmp_path).odds, [1 / 3, 2 / 3])


def test_a_model_may_be_one_of_dipoles(data, tmp_path):
    given = tree(data)
    given["model"]["model_dict"]["two"]["fitting_net"] = {"type": "dipole", "neuron": [5]}
    given["loss_dict"]["two"] = {"type": "tensor", "pref": 1, "pref_atomic": 0}
    np.save(f"{data['b']}/set.000/dipole.npy", np.random.default_rng(0).normal(size=(6, 3)))
    trainer = Trainer(parse_input(given), tmp_path)
    trainer.run()
    assert [b.potential.model.outputs[0].name for b in trainer.branches.values()] == ["energy", "dipole"]


def test_the_command_trains_them_and_one_is_fine_tuned(data, tmp_path, capsys):
    given = tree(data)
    given["model"]["model_dict"]["one"]["model_branch_alias"] = ["Default"]
    (tmp_path / "input.json").write_text(json.dumps(given))
    assert main(["train", str(tmp_path / "input.json"), "-o", str(tmp_path / "run")]) == 0
    out = capsys.readouterr()
    assert "training 2 models" in out.err and "50.0% of the steps, on 4 frames" in out.err
    assert all(f"run/{name}/model.safetensors, step 12" in out.out for name in ("one", "two"))
    assert (
        main(["train", str(tmp_path / "input.json"), "-o", str(tmp_path / "run")]) == 2
    )  # there is one already
    assert "belongs to an earlier training" in capsys.readouterr().err
    model = tmp_path / "run/one/model.safetensors"
    assert main(["info", str(model), "--head", "Default"]) == 0


def test_heads_are_fine_tuned_and_new_ones_begun(data, tmp_path):
    """On one model's file: a branch of another name has its descriptor and its fitting."""
    first = Trainer(parse_input(tree(data, numb_steps=2)), tmp_path / "first")
    first.run()
    file = tmp_path / "first/one/model.safetensors"
    old = mdops.load(file, dtype="float64").model
    given = tree(data, numb_steps=1)
    given["learning_rate"]["start_lr"] = 1e-300
    given["model"]["model_dict"]["two"]["finetune_head"] = "RANDOM"
    given["model"]["model_dict"]["two"]["fitting_net"] = {"neuron": [7], "seed": 9}
    trainer = Trainer(parse_input(given), tmp_path / "second", finetune=file)
    one, two = (trainer.branches[name].potential.model for name in ("one", "two"))
    for a, b in zip(one.descriptor.parameters(), old.descriptor.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.fitting.net(0).layers[0].weight, old.fitting.net(0).layers[0].weight)
    assert two.fitting.net(0).layers[0].outputs == 7 and two.descriptor is one.descriptor
    own = output_statistics(trainer.branches["two"].frames.data).bias
    np.testing.assert_allclose(two.out_bias.numpy(), own, rtol=1e-10)
    single = {"model": {"type_map": ["Cu", "Al"], "descriptor": given["model"]["shared_dict"]["shared"],
                        "fitting_net": {"neuron": [3]}},
              "training": {"training_data": {"systems": data["a"]}, "numb_steps": 1,
                           "precision": "float64"}}  # fmt: skip
    begun = Trainer(parse_input(single), tmp_path / "third", finetune=file, head="RANDOM")
    assert begun.potential.model.fitting.net(0).layers[0].outputs == 3
    for a, b in zip(begun.potential.model.descriptor.parameters(), old.descriptor.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_new_head_shares_the_fitting_of_those_of_a_file(data, tmp_path):
    """The file is DeePMD-kit's, and says of each layer of a net whether it is trained."""
    file, given = DATA / "heads/several.pt", tree(data, fitting="fit", numb_steps=1)
    given["model"]["shared_dict"]["shared"] = {
        "type": "dpa1", "sel": 60, "rcut": 4.5, "rcut_smth": 0.5, "neuron": [3, 6], "axis_neuron": 3, "tebd_dim": 4,
        "attn_layer": 0,
    }  # fmt: skip
    given["model"]["shared_dict"]["fit"] = {"neuron": [5, 5], "dim_case_embd": 3}
    given["model"]["model_dict"]["one"]["finetune_head"] = "Metals"
    trainer = Trainer(parse_input(given), tmp_path / "run", finetune=file)
    one, two = (trainer.branches[name].potential.model.fitting for name in ("one", "two"))
    old = mdops.load(file, head="Metals", dtype="float64").model.fitting
    assert one.nets is two.nets and torch.equal(one.net(0).layers[0].weight, old.net(0).layers[0].weight)
    assert one.case_embedding.tolist() == [1, 0, 0] and two.case_embedding.tolist() == [0, 1, 0]
    trainer.run()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda t: t["model"]["model_dict"]["one"].update(descriptor="other"),
            "one.descriptor: is 'other', which",
        ),
        (
            lambda t: t["model"]["model_dict"]["one"].update(descriptor="shared:1"),
            "only level 0 is supported",
        ),
        (lambda t: t["training"]["data_dict"].pop("two"), r"training\.data_dict\.two: is missing"),
        (
            lambda t: t["training"]["data_dict"].update(three={}),
            r"training\.data_dict\.three: there is no such model",
        ),
        (lambda t: t["loss_dict"].update(three={}), r"loss_dict\.three: there is no such model"),
        (lambda t: t["training"].update(model_prob={"one": 1}), r"training\.model_prob\.two: is None"),
        (lambda t: t["training"].update(model_prob={"one": 0, "two": 0}), "all numbers are 0"),
        (lambda t: t["model"].update(model_dict={}), r"model\.model_dict: has no models"),
        (
            lambda t: t["model"]["model_dict"]["two"]["fitting_net"].update(neurons=[1]),
            "in the model two: model.fit",
        ),
    ],
)
def test_what_is_wrong_is_named(data, change, match):
    given = tree(data)
    change(given)
    with pytest.raises(ConfigError, match=match):
        parse_input(given)


def test_parts_that_differ_are_not_shared(data, tmp_path):
    given = tree(data)
    given["model"]["model_dict"]["two"]["type_map"] = ["Al", "Cu"]
    with pytest.raises(
        ConfigError, match=r"model\.shared_dict\.shared: is another part of one than of two: .*'auto'"
    ):
        Trainer(parse_input(given), tmp_path)
