"""Errors, the table of frames and the plots are of the frames and labels that there are."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ase.io import write
from small_systems import alloy, write_system

import mdops
from mdops.data import evaluation as evaluation_module
from mdops.data.evaluation import evaluate
from mdops.data.labels import LABELS
from mdops.errors import DataError, InputError
from mdops.train import PairLists, load_dataset, make_batch
from mdops.train.loop.update import predict
from mdops.train.loss.base import squared_errors
from mdops.train.report.frame_table import write_table
from mdops.train.report.learning_curve import LearningCurve, read_curve
from mdops.train.report.plots import learning_curve_plot, parity_plot

MODEL = Path(__file__).parents[1] / "data" / "formats" / "model.dp"
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def model():
    return mdops.load(MODEL, dtype="float64", overflow="extend")


@pytest.fixture
def mixture(tmp_path, model):
    """Five frames of two sizes: the last, larger one has neither forces nor stress."""
    small = write_system(tmp_path / "small", alloy(4))
    (large,) = alloy(1, seed=1, repeat=(2, 2, 1))
    energy = large.get_potential_energy()
    large.calc, large.info["energy"] = None, energy
    write(tmp_path / "large.extxyz", large)
    return load_dataset([small, tmp_path / "large.extxyz"], model.type_map)


def test_errors_are_those_of_training(model, mixture):
    batch = make_batch(mixture, PairLists(mixture, model.cutoff), np.arange(5))
    expected = squared_errors(predict(model, batch, create_graph=False), batch)
    errors = evaluate(model, mixture).errors()
    assert list(errors) == ["energy", "forces", "virial"]
    for name, error in errors.items():
        total, count = expected[name]
        assert error.count == count
        assert error.rmse == pytest.approx((total / count) ** 0.5, rel=1e-9)
        assert 0 < error.mae <= error.rmse


def test_batches_do_not_matter(model, mixture, monkeypatch):
    whole = evaluate(model, mixture)
    monkeypatch.setattr(evaluation_module, "_BATCH_ATOMS", 20)
    parts = evaluate(model, mixture)
    for name, values in whole.predictions.items():
        np.testing.assert_allclose(parts.predictions[name], values, rtol=0, atol=1e-10)


def test_errors_of_chosen_frames(model, mixture):
    evaluation = evaluate(model, mixture)
    label, prediction = evaluation.compared("forces", np.array([1]))
    atoms = mixture.atoms(1)
    np.testing.assert_array_equal(label, mixture.labels["forces"][atoms].ravel())
    np.testing.assert_array_equal(prediction, evaluation.predictions["forces"][atoms].ravel())
    assert list(evaluation.errors(np.array([4]))) == ["energy"]
    label, _ = evaluation.compared("virial", np.array([0]))
    np.testing.assert_allclose(label, mixture.labels["virial"][0].ravel() / 8)


def test_a_frame_that_has_no_answer_is_named(tmp_path, mixture):
    strict = mdops.load(MODEL)
    strict.model.descriptor.options.sel = [1, 1]
    with pytest.raises(DataError, match=r"set\.000, frame 0: .*sel"):
        evaluate(strict, mixture)


def test_table_has_a_line_for_each_frame(model, mixture, tmp_path):
    evaluation = evaluate(model, mixture)
    write_table(evaluation, tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(Path(r["source"]).name, r["frame"], r["atoms"]) for r in rows] == [
        *(("set.000", str(k), "8") for k in range(4)),
        ("large.extxyz", "0", "16"),
    ]
    energies = np.array([float(r["energy_error/(eV/atom)"]) for r in rows])
    assert np.sqrt(np.mean(energies**2)) == pytest.approx(evaluation.errors()["energy"].rmse, rel=1e-5)
    forces = np.array([float(r["force_rmse/(eV/A)"]) for r in rows[:4]])
    assert np.sqrt(np.mean(forces**2)) == pytest.approx(evaluation.errors()["forces"].rmse, rel=1e-5)
    assert float(rows[0]["largest_force_error/(eV/A)"]) > float(rows[0]["force_mae/(eV/A)"])
    assert rows[4]["force_mae/(eV/A)"] == rows[4]["virial_rmse/(eV/atom)"] == ""


def test_plots(model, mixture, tmp_path):
    pytest.importorskip("matplotlib")
    parity_plot(evaluate(model, mixture), tmp_path / "parity.png")
    assert (tmp_path / "parity.png").read_bytes().startswith(PNG)
    curve = LearningCurve(
        tmp_path / "lcurve.out", [LABELS[name] for name in ("energy", "forces")], validation=True
    )
    for step, rmse in ((1, 0.5), (100, 0.1)):
        curve.write(step, {"loss": 1.0, "energy": rmse, "forces": rmse}, {"loss": 1.0, "energy": rmse}, 1e-3)
    columns = read_curve(tmp_path / "lcurve.out")
    assert columns["step"].tolist() == [1, 100] and columns["rmse_e_val"].tolist() == [0.5, 0.1]
    assert np.isnan(columns["rmse_f_val"]).all()
    learning_curve_plot(columns, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)


def test_half_a_line_of_a_curve_is_dropped(tmp_path):
    """As a full disk leaves it: what is there of the step 120 looks like the step 12."""
    path, labels = tmp_path / "lcurve.out", [LABELS["energy"]]
    curve = LearningCurve(path, labels, validation=False)
    for step in (1, 100, 120):
        curve.write(step, {"loss": 1.0, "energy": 0.1}, None, 1e-3)
    text = path.read_text()
    path.write_text(text[: text.rindex("120") + 2])
    LearningCurve(path, labels, validation=False, after=110)
    assert path.read_text() == text[: text.rindex("\n", 0, -1) + 1]


def test_curve_of_deepmd_is_read(tmp_path):
    path = tmp_path / "lcurve.out"
    path.write_text("# step  rmse_trn  lr\n# a remark\n  1  2.5e+00  1.0e-03\n  50  nan  1.0e-03\n")
    columns = read_curve(path)
    assert list(columns) == ["step", "rmse_trn", "lr"] and columns["rmse_trn"][0] == 2.5


@pytest.mark.parametrize("text", ["", "# step lr\n", "# step lr\n1 2 3\n", "a b\n1 2\n", "# step lr\n1 x\n"])
def test_what_is_no_curve_is_refused(tmp_path, text):
    (tmp_path / "lcurve.out").write_text(text)
    with pytest.raises(InputError, match=r"lcurve\.out: is not a learning curve"):
        read_curve(tmp_path / "lcurve.out")


def test_parameters_that_the_model_does_not_take_are_left_out(mixture, model):
    """Of data alone: whoever gives them to the model itself is refused."""
    atoms, frames = mixture.offsets[-1], len(mixture)
    labels = {**mixture.labels, "fparam": np.ones((frames, 2)), "aparam": np.ones((atoms, 1))}
    in_frames = dict.fromkeys(("fparam", "aparam"), np.ones(frames, dtype=bool))
    data = replace(mixture, labels=labels, present={**mixture.present, **in_frames})
    expected, found = (evaluate(model, d).predictions for d in (mixture, data))
    assert all((expected[name] == value).all() for name, value in found.items())
    batch = make_batch(data, PairLists(data, model.cutoff), [0, 1])
    assert batch.fparam is not None and batch.aparam is not None
    predicted = predict(model, batch)["energy"].detach().numpy()
    np.testing.assert_allclose(predicted, expected["energy"][:2], rtol=1e-8)
    assert batch.taken_by(model).fparam is None and batch.taken_by(model).aparam is None
