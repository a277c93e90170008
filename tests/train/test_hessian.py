"""Hessians: those of DeePMD-kit, and a loss of them."""

import json
from pathlib import Path

import ase
import numpy as np
import pytest
import torch

from mdops import load
from mdops.cli import main
from mdops.data.batch import make_batch
from mdops.data.dataset import load_dataset
from mdops.data.evaluation import evaluate
from mdops.data.lmdb_write import write_lmdb
from mdops.data.neighbor_lists import PairLists
from mdops.errors import ConfigError, DataError
from mdops.options import parse
from mdops.train import parse_config
from mdops.train.loop.factories import require_labels
from mdops.train.loop.hessian import differences
from mdops.train.loop.prediction import predict
from mdops.train.loss import LOSSES
from mdops.train.loss.base import label_errors

DATA = Path(__file__).parents[1] / "data"
CASES = {
    "base": "reference/base",
    "dpa1": "reference_kinds/dpa1_attn0_strip",
    "dpa2": "reference_kinds/dpa2_base",
    "dpa3": "reference_kinds/dpa3_base",
}


def reference(case):
    potential = load(DATA / CASES[case] / "model.dp", dtype="float64", spline=False)
    with np.load(DATA / "hessian.npz") as found:
        arrays = dict(found)
    symbols = [potential.type_map[t] for t in arrays["types"]]
    pairs = zip(arrays["positions"], arrays["cell"], strict=True)
    return potential, [ase.Atoms(symbols, x, cell=cell, pbc=True) for x, cell in pairs], arrays[case]


def write(folder, potential, frames, matrices):
    place = folder / "set.000"
    place.mkdir(parents=True)
    np.savetxt(folder / "type.raw", [potential.type_map.index(s) for s in frames[0].symbols], fmt="%d")
    (folder / "type_map.raw").write_text("\n".join(potential.type_map) + "\n")
    answers = [potential.compute(atoms) for atoms in frames]
    np.save(place / "coord.npy", [atoms.positions.ravel() for atoms in frames])
    np.save(place / "box.npy", [atoms.cell.array.ravel() for atoms in frames])
    np.save(place / "energy.npy", [found["energy"] for found in answers])
    np.save(place / "force.npy", [found["forces"].ravel() for found in answers])
    np.save(place / "hessian.npy", np.reshape(matrices, (len(frames), -1)))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_hessians_are_those_of_deepmd(case):
    potential, frames, expected = reference(case)
    for got, matrix in zip(potential.hessians(frames), expected, strict=True):
        assert np.abs(got - matrix).max() < 1e-10 * np.abs(matrix).max()


def test_frames_of_different_sizes_have_their_own(tmp_path):
    potential, frames, _ = reference("base")
    fewer = frames[0][:3]
    got = potential.hessians([fewer, frames[1]])
    assert [len(matrix) for matrix in got] == [9, 15]
    for matrix, atoms in zip(got, (fewer, frames[1]), strict=True):
        np.testing.assert_allclose(matrix, potential.hessians(atoms)[0], atol=1e-12)
    paths = [
        write(tmp_path / str(k), potential, [a], m[None])
        for k, (a, m) in enumerate(zip((fewer, frames[1]), got, strict=True))
    ]
    data = load_dataset(paths, potential.type_map)
    assert data.labels["hessian"].shape == (9 + 25, 3, 3)
    error = evaluate(potential, data).errors()["hessian"]
    assert error.rmse < 1e-10 and error.count == 81 + 225
    batch = make_batch(data, PairLists(data, potential.cutoff), np.array([1, 0]))
    found = differences(potential, batch)
    np.testing.assert_allclose(found.detach(), batch.labels["hessian"], atol=1e-7)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-8), ("float32", 2e-4)])
def test_those_of_a_training_are_near(tmp_path, case, dtype, tolerance):
    """They are differences of forces."""
    potential, frames, expected = reference(case)
    data = load_dataset(write(tmp_path / "data", potential, frames, expected), potential.type_map)
    potential = load(DATA / CASES[case] / "model.dp", dtype=dtype, spline=False).train()
    found = differences(potential, make_batch(data, PairLists(data, potential.cutoff), np.arange(2)))
    assert np.abs(found.detach().numpy() - data.labels["hessian"]).max() < tolerance * np.abs(expected).max()


def loss_of(**keys):
    section = {"start_pref_e": 0, "limit_pref_e": 0, "start_pref_f": 0, "limit_pref_f": 0}
    options = parse(LOSSES["ener"].Options, {**section, "start_pref_h": 3.0, "limit_pref_h": 1.0, **keys})
    return LOSSES["ener"].make(options, LOSSES["ener"].labels)


@pytest.mark.parametrize(("function", "power"), [("mse", 2), ("mae", 1)])
def test_the_loss_is_the_mean_over_elements(tmp_path, function, power):
    potential, frames, expected = reference("base")
    wrong = expected + np.random.default_rng(1).normal(size=expected.shape)
    data = load_dataset(write(tmp_path / "data", potential, frames, wrong), potential.type_map)
    batch = make_batch(data, PairLists(data, potential.cutoff), np.arange(2))
    loss = loss_of(loss_func=function)
    result = predict(potential, batch, loss=loss)
    mean = 3 * (np.abs(wrong - expected) ** power).mean()
    assert float(loss(result, batch).detach()) == pytest.approx(mean, rel=1e-6)
    assert label_errors(result, batch)["hessian"].numel() == 2 * 225
    assert "hessian" not in label_errors(predict(potential, batch), batch)


@pytest.mark.filterwarnings("error:the loss is not of")
@pytest.mark.parametrize("keys", [{"limit_pref_h": 0.0}, {"start_pref_h": 0.0}])
def test_hessians_count_where_one_weight_is_not_zero_as_in_deepmd(tmp_path, keys):
    loss = loss_of(**keys)
    assert loss.terms == ["hessian"]
    assert loss_of(start_pref_f=1.0, **keys).terms == ["hessian"]  # that of forces ends with none
    potential, frames, expected = reference("base")
    require_labels(loss, load_dataset(write(tmp_path, potential, frames, expected), potential.type_map))
    with pytest.raises(ConfigError, match="use_huber"):
        loss_of(use_huber=True, **keys)


def test_gradients_of_weights_are_right(tmp_path):
    potential, frames, expected = reference("base")
    data = load_dataset(write(tmp_path / "data", potential, frames, 0 * expected), potential.type_map)
    batch, loss = make_batch(data, PairLists(data, potential.cutoff), np.arange(2)), loss_of()
    potential = load(DATA / CASES["base"] / "model.dp", dtype="float64", spline=False).train()
    loss(predict(potential, batch, loss=loss), batch).backward()
    weight = max(
        (p for p in potential.parameters() if p.grad is not None), key=lambda p: float(p.grad.abs().max())
    )
    place, slope, values = int(weight.grad.abs().argmax()), float(weight.grad.abs().max()), []
    for sign in (1, -1):
        with torch.no_grad():
            weight.view(-1)[place] += sign * 1e-5
        matrices = potential.hessians(frames)
        with torch.no_grad():
            weight.view(-1)[place] -= sign * 1e-5
        values.append(3 * np.square(matrices).mean())
    assert abs(values[0] - values[1]) / 2e-5 == pytest.approx(slope, rel=1e-4)


def test_a_training_learns_hessians_and_the_test_shows_them(tmp_path, monkeypatch, capsys):
    potential, frames, expected = reference("base")
    write(tmp_path / "data", potential, frames, expected)
    monkeypatch.chdir(tmp_path)
    descriptor = {
        "type": "se_e2_a",
        "sel": "auto",
        "rcut": 4.0,
        "rcut_smth": 2.0,
        "neuron": [4, 8],
        "axis_neuron": 2,
    }
    text = {
        "model": {
            "type_map": potential.type_map,
            "descriptor": descriptor,
            "fitting_net": {"neuron": [8, 8]},
        },
        "learning_rate": {"type": "exp", "start_lr": 0.01, "stop_lr": 1e-3},
        "loss": {
            "type": "ener",
            "start_pref_h": 10.0,
            "limit_pref_h": 10.0,
            "start_pref_e": 1e-3,
            "limit_pref_e": 1e-3,
        },
        "training": {"training_data": {"systems": ["data"], "batch_size": 2}, "numb_steps": 30, "seed": 1},
    }
    Path("input.json").write_text(json.dumps(text))
    assert main(["train", "input.json"]) == 0
    header = Path("lcurve.out").read_text().splitlines()[0].strip("# ").split()
    rows = np.loadtxt("lcurve.out")
    assert rows[-1, header.index("rmse_h_trn")] < 0.9 * rows[0, header.index("rmse_h_trn")]
    capsys.readouterr()
    assert main(["test", "-m", "model.safetensors", "-d", "data"]) == 0
    assert "Hessian element" in capsys.readouterr().out


def test_lmdb_holds_them(tmp_path):
    pytest.importorskip("lmdb")
    potential, frames, expected = reference("base")
    data = load_dataset(write(tmp_path / "data", potential, frames, expected), potential.type_map)
    write_lmdb(tmp_path / "lmdb", data)
    again = load_dataset(tmp_path / "lmdb", potential.type_map)
    np.testing.assert_array_equal(again.labels["hessian"], data.labels["hessian"])


def test_wrong_lengths_and_huber_functions_are_refused(tmp_path):
    potential, frames, expected = reference("base")
    write(tmp_path / "data", potential, frames, expected[:, :, :14])
    with pytest.raises(DataError, match="hessian has shape"):
        load_dataset(tmp_path / "data", potential.type_map)
    with pytest.raises(ConfigError, match="is not for Hessians"):
        loss_of(use_huber=True)


def test_a_section_may_have_the_older_name():
    section = {"type": "ener_hess", "start_pref_h": 2.0, "limit_pref_h": 1.0}
    config = parse_config(
        {"model": {"type_map": ["O"]}, "loss": section, "training": {"training_data": {"systems": "x"}}}
    )
    assert config.loss.KIND == "ener" and config.loss.start_pref_h == 2.0
