"""TensorBoard's files have the points that the input asks for, each once."""

import sys

import pytest
from test_trainer import config, stop_after

from mdops.errors import InputError
from mdops.train.loop.trainer import Trainer


def charts(folder):
    """The steps of each curve, as TensorBoard shows them, and their values."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder))
    found.Reload()
    return {tag: {event.step: event.value for event in found.Scalars(tag)} for tag in found.Tags()["scalars"]}


def test_points_are_those_of_the_learning_curve(tmp_path):
    reports = []
    Trainer(config(tensorboard=True, tensorboard_freq=2), tmp_path).run(reports.append)
    found = charts(tmp_path / "log")
    forces = found["force RMSE (eV per A)/training"]
    assert list(forces) == [1, 2, 4, 6, 8, 10, 12, 14, 16, 17] == list(found["learning rate"])
    validation = found["force RMSE (eV per A)/validation"]
    assert list(validation) == [1, 4, 8, 12, 16, 17]
    for report in reports:
        assert forces[report.step] == pytest.approx(report.training["forces"])
        assert validation[report.step] == pytest.approx(report.validation["forces"])
        assert found["learning rate"][report.step] == pytest.approx(report.rate)
    names = ("loss", "energy RMSE (eV per atom)", "virial RMSE (eV per atom)")
    assert {f"{name}/{curve}" for name in names for curve in ("training", "validation")} <= found.keys()


def test_a_restart_replaces_points_after_the_checkpoint(tmp_path):
    options = config(tensorboard=True, tensorboard_log_dir="board")
    with pytest.raises(KeyboardInterrupt):
        Trainer(options, tmp_path).run(stop_after(8))
    again = Trainer(options, tmp_path, restart=True)
    assert again.step == 6
    again.run()
    assert list(charts(tmp_path / "board")["loss/training"]) == list(range(1, 18))


def test_charts_do_not_change_the_training(tmp_path):
    (tmp_path / "with").mkdir()
    Trainer(config(), tmp_path).run()
    Trainer(config(tensorboard=True), tmp_path / "with").run()
    assert (tmp_path / "lcurve.out").read_bytes() == (tmp_path / "with" / "lcurve.out").read_bytes()
    assert not (tmp_path / "log").exists()


def test_without_tensorboard_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install tensorboard"):
        Trainer(config(tensorboard=True), tmp_path)
