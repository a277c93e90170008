"""A training begins with another model's weights, and says where that model is not the input's."""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_systems import EMT
from test_trainer import tree

import mdops
from mdops.data.evaluation import evaluate
from mdops.errors import ConfigError, InputError, ModelFileError, UnsupportedModelError
from mdops.io import read_model, write_model
from mdops.options import parse
from mdops.train import PairLists, load_dataset
from mdops.train.config.read import parse_config, read_config
from mdops.train.loop.trainer import Trainer
from mdops.train.loss import LOSSES
from mdops.train.model.initial import refit_bias

FORMATS = Path(__file__).parents[1] / "data" / "formats"
MODEL = FORMATS / "model.dp"  # trained by DeePMD-kit on EMT, with the input emt.json


def config(**model):
    """The input of MODEL, with some of its options changed ("descriptor.sel": ...)."""
    found = read_config(EMT.parent / "emt.json")
    found.training.training_data.systems = str(EMT)
    found.training.precision = "float64"
    found.training.numb_steps = 2
    for place, value in model.items():
        *sections, name = place.split("__")
        node = found.model
        for section in sections:
            node = getattr(node, section)
        setattr(node, name, value)
    return found


def assert_same_state(one, two, but=()):
    second = two.state_dict()
    for name, value in one.state_dict().items():
        assert name in but or torch.equal(value, second[name]), name


@pytest.mark.parametrize("name", ["model.dp", "model.pth", "model.ckpt.pt"])
def test_init_model_has_the_models_weights_and_statistics(tmp_path, name):
    trainer = Trainer(config(), tmp_path, init_model=FORMATS / name)
    assert trainer.step == 0 and not trainer.optimizer.state
    assert_same_state(mdops.load(MODEL, dtype="float64"), trainer.potential)
    before = trainer.potential.model.out_bias.clone()
    trainer.run()
    assert torch.equal(trainer.potential.model.out_bias, before)
    again = Trainer(config(), tmp_path / "..", init_model=tmp_path / "model.safetensors")
    assert_same_state(trainer.potential, again.potential)


def test_a_model_may_be_given_in_the_place_of_its_file(tmp_path):
    """It is copied, and must compute as the training does."""
    model = mdops.load(MODEL, dtype="float64")
    trainer = Trainer(config(), tmp_path, init_model=model)
    assert_same_state(trainer.potential, Trainer(config(), tmp_path, init_model=MODEL).potential)
    assert trainer.potential is not model and not model.training
    single = mdops.load(MODEL)
    with pytest.raises(
        InputError, match=r"computes in torch.float32, and training.precision is torch.float64"
    ):
        Trainer(config(), tmp_path, init_model=single)


def test_a_trained_model_begins_with_its_errors(tmp_path):
    options = config()
    options.training.disp_freq = 1
    reports = []
    Trainer(options, tmp_path, init_model=MODEL).run(reports.append)
    new = []
    Trainer(options, tmp_path).run(new.append)
    assert reports[0].training["forces"] < 0.8 * new[0].training["forces"]


def test_finetune_fits_the_energies_of_the_types_to_what_is_left(tmp_path):
    """Energies that are those of the model, shifted by an energy of each type: the shift is found."""
    shift = np.array([3.0, -7.0])
    frames = load_dataset(str(EMT), ["Cu", "Al"])
    potential = mdops.load(MODEL, dtype="float64")
    answers = evaluate(potential, frames).predictions["energy"]
    frames.types[: frames.offsets[1]] = 1  # another composition: the shifts of both types are determined
    answers[0] = evaluate(potential, frames).predictions["energy"][0]
    frames.labels["energy"][:] = answers + frames.composition() @ shift
    before = potential.model.out_bias.clone()
    refit_bias(potential, frames, PairLists(frames, potential.cutoff), np.arange(len(frames)))
    np.testing.assert_allclose((potential.model.out_bias - before).numpy(), shift, atol=1e-8)
    assert potential.model.out_std.max() < 1e-6

    potential.model.out_bias.copy_(before)
    refit_bias(
        potential, frames, PairLists(frames, potential.cutoff), np.arange(1, len(frames)), preset={0: 1.5}
    )
    assert float(potential.model.out_bias[0]) == pytest.approx(1.5)


def test_finetune_changes_the_bias_alone(tmp_path):
    trainer = Trainer(config(), tmp_path, finetune=MODEL)
    reference = mdops.load(MODEL, dtype="float64")
    assert_same_state(reference, trainer.potential, but=("model.out_bias", "model.out_std"))
    assert not torch.equal(reference.model.out_bias, trainer.potential.model.out_bias)
    energies = {
        name: evaluate(potential, trainer.frames.data).errors()["energy"].rmse
        for name, potential in (("before", reference), ("after", trainer.potential))
    }
    assert energies["after"] < energies["before"]


def test_finetune_without_energies_keeps_the_bias():
    frames = load_dataset(str(EMT), ["Cu", "Al"])
    del frames.labels["energy"], frames.present["energy"]
    potential = mdops.load(MODEL, dtype="float64")
    before = potential.model.out_bias.clone()
    with pytest.warns(UserWarning, match="the data has no energies"):
        refit_bias(potential, frames, PairLists(frames, potential.cutoff), np.arange(len(frames)))
    assert torch.equal(potential.model.out_bias, before)


@pytest.mark.parametrize("beginning", ["init_model", "finetune"])
def test_a_models_types_may_be_more_and_in_another_order(tmp_path, beginning):
    """The training is that of the model's own type map, and the model keeps all of its types."""
    whole = tree(numb_steps=3, precision="float64", save_freq=2)
    whole["model"]["type_map"] = ["H", "Al", "Cu"]
    whole["model"]["descriptor"]["sel"] = [8, 40, 40]
    (tmp_path / "data").mkdir()
    Trainer(parse_config(whole), tmp_path / "data").run()
    model = {beginning: tmp_path / "data" / "model.safetensors"}

    two = copy.deepcopy(whole)
    two["model"]["type_map"] = ["Cu", "Al"]
    two["model"]["descriptor"]["sel"] = [40, 40]
    for name, tree_of_run in (("three", whole), ("two", two)):
        (tmp_path / name).mkdir()
        Trainer(parse_config(tree_of_run), tmp_path / name, **model).run()
    three, other = (mdops.load(tmp_path / name / "model.safetensors") for name in ("three", "two"))
    assert other.type_map == ["H", "Al", "Cu"]
    assert_same_state(three, other)
    Path(tmp_path / "two" / "model.ckpt-3.pt").unlink()
    restarted = Trainer(parse_config(two), tmp_path / "two", restart=True)
    assert restarted.step == 2
    restarted.run()
    assert_same_state(other, mdops.load(tmp_path / "two" / "model.safetensors"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"descriptor__neuron": [8, 16]}, r"descriptor\.neuron is \[8, 16\] in the input and \[8, 16, 32\]"),
        ({"descriptor__sel": [80, 50]}, r"descriptor\.sel is Cu 80, Al 50 in the input and Cu 80, Al 60"),
        ({"descriptor__rcut": 5.5}, r"descriptor\.rcut is 5\.5 in the input and 5\.0 in the model"),
        ({"descriptor__type_one_side": True}, r"type_one_side is True in the input and 0"),
        (
            {"descriptor__precision": "float32"},
            "descriptor.precision is 'float32' in the input and 'float64'",
        ),
        ({"fitting_net__resnet_dt": False}, r"fitting_net\.resnet_dt is 0 in the input and True"),
        ({"fitting_net__numb_fparam": 2}, r"numb_fparam is 2 in the input"),
        ({"fitting_net__atom_ener": [1.0, None]}, r"atom_ener is Cu 1\.0 in the input and none"),
        ({"pair_exclude_types": [[0, 1]]}, r"pair_exclude_types is \[\('Al', 'Cu'\)\]"),
        ({"atom_exclude_types": [1]}, r"atom_exclude_types is \['Al'\] in the input and \[\] in the model"),
        ({"descriptor__neuron": [4], "descriptor__rcut": 4.5}, r"rcut is 4\.5 .*neuron is \[4\] .*"),
        ({"type_map": ["Cu", "Ni"]}, r"type_map: has Ni, and .*model\.dp is a model of Cu, Al"),
    ],
)
def test_another_model_than_the_inputs_is_refused(tmp_path, change, says):
    with pytest.raises(ConfigError, match=says):
        Trainer(config(**change), tmp_path, init_model=MODEL)


def test_what_is_not_said_is_the_models(tmp_path):
    open_ = {
        "descriptor__sel": "auto",
        "descriptor__precision": "default",
        "fitting_net__precision": "default",
    }
    assert Trainer(config(**open_), tmp_path, init_model=MODEL).potential.sel == [80, 60]


def test_use_pretrain_script_takes_the_models_options(tmp_path):
    other = config(descriptor__neuron=[4], descriptor__rcut=3.0, descriptor__sel=[1, 1])
    trainer = Trainer(other, tmp_path, finetune=MODEL, use_pretrain_script=True)
    assert trainer.potential.cutoff == 5.0 == trainer.frames.lists.cutoff
    trainer.run()
    assert Trainer(other, tmp_path, restart=True).potential.cutoff == 5.0


def test_a_file_that_is_no_model_and_one_that_is_not_supported(tmp_path):
    with pytest.raises(ModelFileError, match="no such file"):
        Trainer(config(), tmp_path, init_model=tmp_path / "absent.dp")
    other = read_model(FORMATS / "model.dp").model
    other["descriptor"]["type"] = "se_a_ebd"
    write_model(tmp_path / "other.safetensors", other)
    with pytest.raises(UnsupportedModelError, match="the descriptor se_a_ebd is not supported"):
        Trainer(config(), tmp_path, finetune=tmp_path / "other.safetensors")


def test_beginnings_exclude_each_other(tmp_path):
    with pytest.raises(InputError, match="cannot be combined"):
        Trainer(config(), tmp_path, init_model=MODEL, finetune=MODEL)
    with pytest.raises(InputError, match="use_pretrain_script needs a model"):
        Trainer(config(), tmp_path, use_pretrain_script=True)


@pytest.mark.filterwarnings("ignore:the data has .* training does not use")
def test_energies_of_atoms_that_the_loss_is_not_of_are_not_those_of_types(tmp_path):
    """As in DeePMD-kit."""
    folder = tmp_path / "data"
    shutil.copytree(EMT, folder)
    shape = len(np.load(folder / "set.000" / "energy.npy")), len((folder / "type.raw").read_text().split())
    np.save(folder / "set.000" / "atom_ener.npy", np.full(shape, 100.0))
    options, plain = config(), config()
    options.training.training_data.systems = str(folder)
    options.loss = plain.loss = parse(LOSSES["ener"].Options, {})
    for begun in ({}, {"finetune": MODEL}):
        got, want = (
            Trainer(c, tmp_path / name, **begun).potential
            for c, name in ((options, "atoms"), (plain, "plain"))
        )
        torch.testing.assert_close(got.model.out_bias, want.model.out_bias)
    options.loss = parse(LOSSES["ener"].Options, {"start_pref_ae": 1.0, "limit_pref_ae": 1.0})
    assert (Trainer(options, tmp_path / "learned").potential.model.out_bias == 100.0).all()
