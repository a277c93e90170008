"""Files of several models, as multi-task trainings of DeePMD-kit write them (tests/data/make_heads.py)."""

from pathlib import Path

import ase
import numpy as np
import pytest
import torch

from mdops import load
from mdops.calculator import MDOps
from mdops.cli import main
from mdops.deepmd import DeepPot
from mdops.errors import HeadError, InputError, ModelFileError
from mdops.io import read_model
from mdops.train import Trainer, parse_config

DATA = Path(__file__).parents[1] / "data"
HEADS = DATA / "heads"
SEVERAL, ONE = HEADS / "several.pt", HEADS / "one.pth"


@pytest.fixture(scope="module")
def answers():
    with np.load(HEADS / "answers.npz") as file:
        return dict(file)


def atoms_of(answers):
    symbols = [["Cu", "Al"][t] for t in answers["types"]]
    return ase.Atoms(symbols, positions=answers["positions"][0], cell=answers["cell"][0], pbc=True)


def assert_answers(potential, answers, head):
    found = potential.compute(atoms_of(answers))
    expected = {k.removeprefix(f"{head}/"): v for k, v in answers.items() if k.startswith(f"{head}/")}
    assert expected
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].ravel(), value.ravel(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("head", ["Metals", "Oxides", "Moments"])
def test_each_head_answers_as_in_deepmd_kit(answers, head):
    assert_answers(load(SEVERAL, head=head, dtype="float64", spline=False), answers, head)


def test_heads_differ(answers):
    assert abs(answers["Metals/energy"] - answers["Oxides/energy"]) > 1e-6


@pytest.mark.parametrize("name", ["alloys", "CuAl", "cual", "metals"])
def test_other_names_and_cases_do(answers, name):
    potential = load(SEVERAL, head=name, dtype="float64", spline=False)
    assert potential.source["head"] == "Metals"
    assert_answers(potential, answers, "Metals")


def test_a_frozen_head_needs_no_name(answers):
    assert_answers(load(ONE, dtype="float64", spline=False), answers, "Oxides")
    with pytest.raises(HeadError, match="one model, not of a multi-task training: there is no head 'Metals'"):
        load(ONE, head="Metals")


def test_without_a_name_the_heads_are_listed():
    with pytest.raises(
        HeadError,
        match=r"several\.pt: it holds 3 models, the heads Metals \(also alloys, CuAl\), Oxides, Moments: "
        "choose one, as head='Metals'",
    ):
        load(SEVERAL)
    with pytest.raises(HeadError, match=r"no head 'Salts'; it holds the heads Metals"):
        load(SEVERAL, head="Salts")


def test_a_file_with_one_head_needs_no_name(answers, tmp_path):
    checkpoint = torch.load(SEVERAL, weights_only=True)
    params = checkpoint["model"]["_extra_state"]["model_params"]
    params["model_dict"] = {"Metals": params["model_dict"]["Metals"]}
    torch.save(checkpoint, tmp_path / "one.pt")
    assert_answers(load(tmp_path / "one.pt", dtype="float64", spline=False), answers, "Metals")


@pytest.mark.parametrize("suffix", [".safetensors", ".dp", ".json"])
def test_saved_models_know_their_head(answers, suffix, tmp_path):
    path = tmp_path / f"model{suffix}"
    load(SEVERAL, head="alloys", dtype="float64", spline=False).save(path, core=[])
    for head in (None, "Metals", "CuAl"):
        assert_answers(load(path, head=head, dtype="float64", spline=False), answers, "Metals")
    with pytest.raises(HeadError, match="one model, that of the head Metals: there is no head 'Oxides'"):
        load(path, head="Oxides")


def test_weights_that_a_head_lacks_are_missing(tmp_path):
    checkpoint = torch.load(SEVERAL, weights_only=True)
    checkpoint["model"] = {k: v for k, v in checkpoint["model"].items() if not k.startswith("model.Oxides.")}
    torch.save(checkpoint, tmp_path / "m.pt")
    with pytest.raises(ModelFileError, match=r"m\.pt: .*missing"):
        read_model(tmp_path / "m.pt", "Oxides")
    read_model(tmp_path / "m.pt", "Metals")


def test_calculators_take_a_head(answers):
    atoms = atoms_of(answers)
    atoms.calc = MDOps(SEVERAL, head="Oxides", dtype="float64", spline=False)
    np.testing.assert_allclose(atoms.get_potential_energy(), answers["Oxides/energy"][0, 0], rtol=1e-9)
    with pytest.raises(InputError, match="head='Oxides' is for model files"):
        MDOps(load(SEVERAL, head="Oxides"), head="Oxides")
    found = DeepPot(SEVERAL, head="Metals", spline=False)
    energy, _, _ = found.eval(answers["positions"], answers["cell"], answers["types"])
    np.testing.assert_allclose(energy, answers["Metals/energy"], rtol=1e-9)


@pytest.mark.parametrize("option", ["--head", "--model-branch"])
def test_commands_take_a_head(option, tmp_path, capsys):
    assert main(["info", str(SEVERAL), option, "CuAl"]) == 0
    assert "Metals" in capsys.readouterr().out
    out = str(tmp_path / "model.dp")
    assert main(["convert", str(SEVERAL), out, option, "Oxides"]) == 0
    assert read_model(out).source["head"] == "Oxides"
    assert main(["test", "-m", str(SEVERAL), "-d", str(DATA / "training" / "emt"), option, "Oxides"]) == 0
    assert "energy" in capsys.readouterr().out
    assert main(["info", str(SEVERAL)]) == 2
    assert "choose one, as --head Metals" in capsys.readouterr().err


def test_trainings_begin_with_a_head(tmp_path):
    definition = read_model(SEVERAL, "Metals").source["model_def_script"]
    model = {k: v for k, v in definition.items() if k in ("type_map", "descriptor")}
    config = {
        "model": {**model, "fitting_net": {"neuron": [5, 5]}},
        "training": {
            "training_data": {"systems": [str(DATA / "training" / "emt")]},
            "numb_steps": 1,
            "seed": 1,
        },
    }
    trainer = Trainer(
        parse_config(config),
        tmp_path / "run",
        finetune=SEVERAL,
        head="Metals",
        use_pretrain_script=True,
    )
    trainer.run()
    with pytest.raises(InputError, match="head needs a model file"):
        Trainer(parse_config(config), tmp_path / "other", head="Metals")
