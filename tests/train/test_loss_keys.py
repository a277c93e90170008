"""Keys of the loss "ener" that change labels or the units of errors, as in DeePMD-kit."""

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import together
from small_systems import write_two_sizes
from test_distributed import gradients
from test_trainer import stop_after, tree

from mdops import load
from mdops.cli import main
from mdops.data.evaluation import evaluate
from mdops.data.labels import LABELS, SPIN_LABELS
from mdops.errors import ConfigError
from mdops.train import PairLists, Trainer, load_dataset, make_batch, parse_config
from mdops.train.loop.update import predict, train_step
from mdops.train.loss.base import squared_errors
from mdops.train.loss.energy import EnergyLoss
from mdops.train.loss.spin import SpinLoss

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "losses.json").read_text())
RATES = [1e-3, 5e-4, 2e-4]
FILES = {"coord": "positions", "box": "cell", "energy": "energy", "force": "force"}


def loss_of(**keys):
    return EnergyLoss.make(EnergyLoss.Options(**keys), LABELS)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_deepmd_kit(name, tmp_path):
    """tests/data/make_losses.py trains the same model with the same frames."""
    keys = CASES[name]
    (tmp_path / "set.000").mkdir()
    with np.load(DATA / "losses.npz") as found:
        given = dict(found)
    files = dict(FILES)
    if keys.get("enable_atom_ener_coeff"):
        files["atom_ener_coeff"] = "coefficients"
    if "start_pref_pf" in keys and not keys.get("use_default_pf"):
        files["atom_pref"] = "atom_pref"
    (tmp_path / "type.raw").write_text("\n".join(map(str, given["types"])))
    for file, array in files.items():
        np.save(tmp_path / "set.000" / f"{file}.npy", given[array].reshape(2, -1))
    potential = load(DATA / "reference/base/model.dp", dtype="float64", spline=False)
    data, loss = load_dataset(tmp_path, potential.type_map), loss_of(**keys)
    loss.complete(data)
    batch = make_batch(data, PairLists(data, potential.cutoff), [0, 1])
    optimizer = torch.optim.Adam([p.requires_grad_() for p in potential.parameters()])
    curve, close = given[f"{name}_curve"], {"rel": 1e-7}  # DeePMD-kit's 1 / N is in float32
    for rate, row in zip(RATES, curve, strict=True):
        errors = squared_errors(predict(potential, batch, create_graph=False), batch, loss)
        value, _ = train_step(potential, loss, optimizer, batch, rate=rate, fraction=rate / RATES[0])
        assert float(value) ** 0.5 == pytest.approx(row[0], **close)
        for wanted, term in zip(row[1:], ("energy", "forces", "atom_pref"), strict=True):
            assert np.isfinite(wanted) or keys.get("loss_func") == "mae" or term not in loss.terms
            if np.isfinite(wanted):
                square, number = errors[term]
                assert (square / number) ** 0.5 == pytest.approx(wanted, **close), (term, rate)
    after = predict(potential, batch, create_graph=False)
    np.testing.assert_allclose(after["energy"], given[f"{name}_energies"], rtol=1e-7)
    np.testing.assert_allclose(after["forces"].reshape(2, 5, 3), given[f"{name}_forces"], atol=1e-8)


@pytest.fixture
def folder(tmp_path):
    """Systems of two sizes, of which one has coefficients of energies, and one weights of forces."""
    write_two_sizes(tmp_path / "data", (4, 5), ("virial", "virial"))
    random = np.random.default_rng(2)
    np.save(tmp_path / "data/one/set.000/atom_ener_coeff.npy", random.uniform(-1, 2, (4, 8)))
    np.save(tmp_path / "data/two/set.000/atom_pref.npy", random.uniform(0, 3, (5, 4)))
    return tmp_path / "data"


def input_of(folder, **keys):
    data = {"systems": str(folder), "batch_size": "mixed:4"}
    ends = {
        f"{end}_pref_{term}": value for end in ("start", "limit") for term, value in (("e", 1), ("pf", 5))
    }
    own = tree(training_data=data, validation_data={**data, "numb_btch": 2}, precision="float64", disp_freq=1)
    own["training"]["gradient_max_norm"] = None
    return parse_config(
        own
        | {
            "loss": {
                **ends,
                "use_default_pf": True,
                "enable_atom_ener_coeff": True,
                "relative_f": 0.3,
                **keys,
            }
        }
    )


def test_frames_without_files_have_ones(folder):
    """As with files of ones; where the loss does not take them, they do not count."""
    for mode in ("implied", "written"):
        data = load_dataset(folder, ["Cu", "Al"])
        loss_of(
            start_pref_pf=1.0, limit_pref_pf=1.0, use_default_pf=True, enable_atom_ener_coeff=True
        ).complete(data)
        assert all(data.present[name].all() for name in ("atom_pref", "atom_ener_coeff")), mode
        assert (data.labels["atom_pref"][:32] == 1).all() and (data.labels["atom_pref"][32:] != 1).all()
        assert (data.labels["atom_ener_coeff"][32:] == 1).all() and (
            data.labels["atom_ener_coeff"][:32] != 1
        ).all()
        np.save(folder / "one/set.000/atom_pref.npy", np.ones((4, 8)))
        np.save(folder / "two/set.000/atom_ener_coeff.npy", np.ones((5, 4)))
    data = load_dataset(folder, ["Cu", "Al"])
    with pytest.warns(
        UserWarning, match=r"has atom_ener_coeff, which .* ignores without loss.enable_atom_ener_coeff"
    ):
        loss_of().complete(data)
    assert not data.has("atom_ener_coeff")


@pytest.mark.parametrize("name", ["data.lmdb", "data.xyz"])
def test_other_files_keep_coefficients(name, folder, tmp_path):
    if name.endswith("lmdb"):
        pytest.importorskip("lmdb")
    assert main(["convert-data", str(folder), str(tmp_path / name), "-t", "Cu", "Al"]) == 0
    found, expected = (load_dataset(path, ["Cu", "Al"]) for path in (tmp_path / name, folder))
    for label in ("atom_ener_coeff", "atom_pref"):
        np.testing.assert_allclose(found.labels[label], expected.labels[label], rtol=1e-7)


def test_restarts_and_processes_have_the_same_numbers(folder, tmp_path):
    config = input_of(folder)
    places = [tmp_path / name for name in ("whole", "stopped")]
    trainer = Trainer(config, places[0])
    trainer.run()
    for frames in (trainer.frames, trainer.validation):
        assert all(frames.data.present[name].all() for name in ("atom_pref", "atom_ener_coeff"))
    with contextlib.suppress(KeyboardInterrupt):
        Trainer(config, places[1]).run(stop_after(8))
    Trainer(config, places[1], restart=True).run()
    curves = [(place / "lcurve.out").read_text() for place in places]
    assert curves[0] == curves[1] and "rmse_pf_val" in curves[0] and "nan" not in curves[0]
    gradients(config, tmp_path)
    expected = torch.load(tmp_path / "found-0.pt", weights_only=False)
    assert together(tmp_path, gradients, config, tmp_path) == [0, 0]
    for (ours, report), (theirs, reference) in zip(
        torch.load(tmp_path / "found-1.pt", weights_only=False), expected, strict=True
    ):
        for part in ("training", "validation"):
            assert report[part] == pytest.approx(reference[part], rel=1e-10)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    energies = evaluate(
        load(places[0] / "model.safetensors", dtype="float64"), load_dataset(folder, ["Cu", "Al"])
    )
    shutil.move(folder / "one/set.000/atom_ener_coeff.npy", tmp_path)
    plain = evaluate(
        load(places[0] / "model.safetensors", dtype="float64"), load_dataset(folder, ["Cu", "Al"])
    )
    apart = np.abs(energies.predictions["energy"] - plain.predictions["energy"])
    assert (apart[:4] > 0.1).all() and (apart[4:] == 0).all()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"relative_f": 0.3, "use_huber": True}, "loss.use_huber: is not for relative_f"),
        ({"start_pref_pf": 1, "limit_pref_pf": 1, "use_huber": True}, "loss.use_huber: is not for weighted"),
    ],
)
def test_keys_that_do_not_fit_each_other_are_refused(keys, message):
    with pytest.raises(ConfigError, match=message):
        loss_of(**keys)


def test_magnetic_moments_have_no_coefficients(tmp_path):
    """DeePMD-kit's loss "ener_spin" has the key, does not read the file, and stops."""
    assert "atom_ener_coeff" not in SPIN_LABELS
    config = tree()
    config["loss"] = {"type": "ener_spin", "enable_atom_ener_coeff": True}
    with pytest.raises(ConfigError, match=r"loss.enable_atom_ener_coeff: is True; this is not supported"):
        parse_config(config)
    assert SpinLoss.make(SpinLoss.Options(), SPIN_LABELS).coefficients is False
