"""Full validation is over all frames, when DeePMD-kit's would be, and keeps the weights that were best in it."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from small_systems import EMT, alloy, write_system, write_two_sizes
from test_trainer import config, stop_after, tree

import mdops
from mdops.data.evaluation import evaluate
from mdops.errors import ConfigError, DivergedError
from mdops.train import load_dataset
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer

EVERY_4 = {"full_validation": True, "validation_freq": 4, "full_val_start": 0}


def validating(training=None, **keys):
    """The training of test_trainer.py with full validations after steps 4, 8, 12 and 16, unless `keys` say else."""
    return parse_config({**tree(**(training or {})), "validating": {**EVERY_4, **keys}})


def table(path):
    """The columns by name, and the comments about best models."""
    lines = path.read_text(encoding="utf-8").splitlines()
    names = [name.partition("(")[0] for name in lines[0].split()[1:]]
    rows = np.array([line.split() for line in lines if not line.startswith("#")], dtype=float)
    saved = [line for line in lines if line.startswith("# saved")]
    return dict(zip(names, rows.reshape(-1, len(names)).T, strict=True)), saved


def names(folder):
    return sorted(path.name for path in folder.glob("best*"))


def test_errors_are_those_of_all_frames(tmp_path):
    """Systems of two sizes, and frames that lack labels: each value counts once, as in `evaluate`."""
    write_two_sizes(tmp_path / "data", (3, 4), ("energy", "virial"))
    data = {"systems": str(tmp_path / "data"), "batch_size": 1}
    options = {"numb_steps": 4, "precision": "float64", "validation_data": data}
    Trainer(validating(options, validation_metric="V:MAE"), tmp_path / "per_atom").run()
    Trainer(validating(options, validation_metric="S:MAE"), tmp_path / "stress").run()
    frames = load_dataset(tmp_path / "data", ["Cu", "Al"])
    model = mdops.load(tmp_path / "stress" / "best.ckpt-4.t-1.safetensors", dtype="float64")
    evaluation = evaluate(model, frames)
    expected = evaluation.errors()
    per_atom, _ = table(tmp_path / "per_atom" / "val.log")
    for letter, label in (("E", "energy"), ("F", "forces"), ("V", "virial")):
        assert per_atom[f"{letter}_MAE"] == pytest.approx([1000 * expected[label].mae], rel=1e-4)
        assert per_atom[f"{letter}_RMSE"] == pytest.approx([1000 * expected[label].rmse], rel=1e-4)
    have = frames.present["virial"]
    volume = np.abs(np.linalg.det(frames.cell[have]))[:, None, None]
    error = (evaluation.predictions["virial"][have] - frames.labels["virial"][have]) / volume
    stress, _ = table(tmp_path / "stress" / "val.log")
    assert stress["S_MAE"] == pytest.approx([1000 * np.abs(error).mean()], rel=1e-4)
    assert stress["S_RMSE"] == pytest.approx([1000 * np.sqrt(np.square(error).mean())], rel=1e-4)
    assert 0 < have.sum() < len(frames)


def test_the_best_are_kept_and_ranked(tmp_path):
    Trainer(validating({"save_freq": 1, "max_ckpt_keep": 99}, max_best_ckpt=2), tmp_path).run()
    columns, saved = table(tmp_path / "val.log")
    assert columns["step"].tolist() == [4, 8, 12, 16] and len(saved) >= 2
    best = columns["step"][np.argsort(columns["E_MAE"])][:2].astype(int)
    stems = [f"best.ckpt-{step}.t-{rank}" for rank, step in enumerate(best, start=1)]
    assert names(tmp_path) == sorted(stem + suffix for stem in stems for suffix in (".pt", ".safetensors"))
    for step, stem in zip(best, stems, strict=True):
        weights = torch.load(tmp_path / f"{stem}.pt")["state"]["branches"][""]["model"]
        regular = torch.load(tmp_path / f"model.ckpt-{step}.pt")["state"]["branches"][""]["model"]
        same(weights, regular)
        training = mdops.load(tmp_path / f"{stem}.safetensors").source["training"]
        assert (training["step"], training["steps"]) == (step, 17)


def same(one, two):
    """Two trees have equal tensors."""
    if isinstance(one, Mapping):
        assert one.keys() == two.keys()
        for name, value in one.items():
            same(value, two[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, two)


def test_a_best_checkpoint_is_one_to_go_on_from(tmp_path):
    Trainer(validating(), tmp_path / "run").run()
    (path,) = (tmp_path / "run").glob("best.ckpt-*.t-1.pt")
    step = int(path.name.split("-")[1].split(".")[0])
    other = tmp_path / "other"
    other.mkdir()
    (other / f"model.ckpt-{step}.pt").write_bytes(path.read_bytes())
    found = Trainer(validating(), other, restart=True)
    assert found.step == step
    expected = mdops.load(tmp_path / "run" / "model.safetensors").state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in found.run().state_dict().items())


@pytest.mark.parametrize(
    ("start", "steps"), [(0.5, [8, 12, 16]), (7, [7, 11, 15]), (16.9, [16]), (1, None), (18, None)]
)
def test_schedule_is_deepmd_kits(tmp_path, start, steps):
    """A part of all 17 steps, a step, or never."""
    trainer = Trainer(validating(full_val_start=start, save_best=False), tmp_path)
    trainer.run()
    assert (tmp_path / "val.log").exists() == (steps is not None) and not names(tmp_path)
    if steps is not None:
        assert table(tmp_path / "val.log")[0]["step"].tolist() == steps


def test_it_changes_nothing_in_the_training(tmp_path):
    Trainer(config(), tmp_path / "without").run()
    Trainer(validating(ema_full_validation=True), tmp_path / "with").run()
    assert not names(tmp_path / "without") and not (tmp_path / "without" / "val.log").exists()
    one, two = (
        mdops.load(tmp_path / name / "model.safetensors").state_dict() for name in ("without", "with")
    )
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert (tmp_path / "without" / "lcurve.out").read_bytes() == (
        tmp_path / "with" / "lcurve.out"
    ).read_bytes()


def test_weights_and_their_average_are_validated_each_by_itself(tmp_path):
    Trainer(validating({"numb_steps": 4}, ema_full_validation=True), tmp_path).run()
    weights, _ = table(tmp_path / "val.log")
    average, _ = table(tmp_path / "val_ema.log")
    assert weights["F_MAE"][0] != average["F_MAE"][0]
    found = {
        name: torch.nn.utils.parameters_to_vector(
            mdops.load(tmp_path / f"{name}-4.t-1.safetensors").parameters()
        )
        for name in ("best.ckpt", "best_ema.ckpt")
    }
    final = mdops.load(tmp_path / "model.safetensors")  # the average, because of enable_ema
    vector = torch.nn.utils.parameters_to_vector(final.parameters())
    assert torch.equal(found["best_ema.ckpt"], vector) and not torch.allclose(found["best.ckpt"], vector)
    evaluation = evaluate(
        mdops.load(tmp_path / "best_ema.ckpt-4.t-1.safetensors"), load_dataset(EMT, ["Cu", "Al"])
    )
    assert average["F_MAE"][0] == pytest.approx(1000 * evaluation.errors()["forces"].mae, rel=1e-3)


def test_a_stopped_run_ends_with_the_same_best_models(tmp_path):
    keys = {
        "max_best_ckpt": 2,
        "ema_full_validation": True,
        "validation_freq": 1,
        "validation_metric": "f:rmse",
    }
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    Trainer(validating(**keys), whole).run()
    for at in (8, 16):  # both some steps after a checkpoint
        with pytest.raises(KeyboardInterrupt):
            Trainer(validating(**keys), stopped, restart=at > 8).run(stop_after(at))
    with (stopped / "val.log").open("a") as file:
        file.write("1")  # a line that a kill has cut
    Trainer(validating(**keys), stopped, restart=True).run()
    assert names(stopped) == names(whole) and len(names(whole)) == 8
    for name in names(whole):
        if name.endswith(".safetensors"):
            same(*(mdops.load(folder / name).state_dict() for folder in (whole, stopped)))
        else:
            same(
                *(torch.load(folder / name)["state"]["branches"][""]["model"] for folder in (whole, stopped))
            )
    for name in ("val.log", "val_ema.log"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    assert table(whole / "val.log")[0]["step"].tolist() == list(range(1, 18))


def test_records_of_another_metric_do_not_count_after_a_restart(tmp_path):
    Trainer(validating({"numb_steps": 8}), tmp_path).run()
    trainer = Trainer(validating(validation_metric="F:MAE"), tmp_path, restart=True)
    assert trainer.full_validations[0].records == []
    assert len(Trainer(validating(), tmp_path, restart=True).full_validations[0].records) == 1


def test_folders_and_names_of_files(tmp_path):
    keys = {"save_best_dir": "best/of", "full_val_file": "logs/full.txt"}
    Trainer(validating({"numb_steps": 4, "save_ckpt": "checkpoints/model"}, **keys), tmp_path / "a").run()
    Trainer(validating({"numb_steps": 4, "save_ckpt": "checkpoints/model"}), tmp_path / "b").run()
    assert names(tmp_path / "a" / "best" / "of") == ["best.ckpt-4.t-1.pt", "best.ckpt-4.t-1.safetensors"]
    assert table(tmp_path / "a" / "logs" / "full.txt")[0]["step"].tolist() == [4]
    assert names(tmp_path / "b" / "checkpoints") == ["best.ckpt-4.t-1.pt", "best.ckpt-4.t-1.safetensors"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"validating": {"validation_metric": "G:MAE"}}, "is 'G:MAE', expected E:MAE or E:RMSE or F:MAE"),
        (
            {"validating": {"full_validation": True}, "validation_data": None},
            "needs training.validation_data",
        ),
        (
            {"validating": {"full_validation": True, "validation_metric": "S:MAE"}, "loss": {}},
            r"which is not in the loss: loss\.start_pref_v is 0",
        ),
        ({"validating": {"max_best_ckpt": 0}}, "expected 1 or more"),
        ({"validating": {"full_val_start": -1}}, "expected 0 or more"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    wanted = tree()
    wanted["training"]["validation_data"] = change.pop(
        "validation_data", wanted["training"]["validation_data"]
    )
    with pytest.raises(ConfigError, match=message):
        parse_config({**wanted, **change})


def test_a_metric_without_labels_is_refused(tmp_path):
    path = write_system(tmp_path / "data", alloy(2), ("Cu", "Al"))
    (path / "set.000" / "virial.npy").unlink()
    options = {"validation_data": {"systems": str(path)}}
    with pytest.raises(ConfigError, match=r"no frame of .*validation_data has a cell and the label virial"):
        Trainer(validating(options, validation_metric="V:RMSE"), tmp_path)


def test_an_average_that_is_not_there_is_warned_of():
    with pytest.warns(UserWarning, match=r"ema_full_validation: has no effect without training\.enable_ema"):
        validating({"enable_ema": False}, full_validation=False, ema_full_validation=True)


def test_a_model_that_has_no_numbers_is_no_best_one(tmp_path):
    trainer = Trainer(validating({"disp_freq": 100}), tmp_path)

    def ruin(step):
        if step == 7:
            with torch.no_grad():
                next(trainer.potential.parameters()).fill_(np.nan)

    with pytest.raises(DivergedError, match="E:MAE of the full validation is nan"):
        trainer.run(on_step=ruin)
    assert names(tmp_path) == ["best.ckpt-4.t-1.pt", "best.ckpt-4.t-1.safetensors"]
