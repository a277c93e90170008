"""`mdops quantize`, in this process."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from small_systems import interrupted

import mdops
from mdops.cli import main
from mdops.data.evaluation import evaluate
from mdops.io import read_model
from mdops.quantization import quantize
from mdops.train import load_dataset
from mdops.train.loop.checkpoint import load_checkpoint

DATA = Path(__file__).parents[1] / "data"
SYSTEM = str(DATA / "training" / "emt")  # 20 frames


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of EMT after some steps, in a folder of its own."""
    folder = tmp_path_factory.mktemp("trained")
    data = {"systems": SYSTEM, "batch_size": 2}
    tree = {
        "model": {
            "type_map": ["Cu", "Al"],
            "descriptor": {"rcut": 4.0, "rcut_smth": 2.0, "neuron": [4, 8], "axis_neuron": 3},
            "fitting_net": {"neuron": [16, 16]},
        },
        "loss": {"type": "ener"},
        "training": {"training_data": data, "numb_steps": 600, "seed": 1, "smoothing": 0.0},
    }
    (folder / "input.json").write_text(json.dumps(tree))
    assert main(["train", str(folder / "input.json"), "--output", str(folder)]) == 0
    return str(folder / "model.safetensors")


@pytest.fixture
def command(trained, tmp_path, monkeypatch):
    """Runs `mdops quantize` with that model in the current folder, which is empty before, without dynamics."""
    monkeypatch.chdir(tmp_path)

    def run(*more, scheme="w8a8", drift="0"):
        return main(["quantize", trained, "--scheme", scheme, "--data", SYSTEM, "--drift", drift, *more])

    return run


def weights(path):
    return torch.cat([p.detach().ravel() for p in mdops.load(path).parameters()])


@pytest.mark.parametrize("scheme", ["w8a8", "fp8", "ternary", "w8"])
def test_a_model_is_rounded_and_its_cost_told(scheme, command, trained, capsys):
    assert command("--report", "cost.json", scheme=scheme) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 frames that the fit did not use; a step of 32 atoms, cpu\n")
    assert re.search(rf"^float32 .*\n{scheme} +[0-9.]+ ", out, re.MULTILINE)
    path = f"model_{scheme}.safetensors"
    assert f"wrote {path}; dynamics with it need --allow-low-bit\n" in out
    # The frames are those that the fit did not see, and the errors those of the model in the file.
    rest = load_dataset(SYSTEM, ["Cu", "Al"], leave_out=5, left_out=True)
    report = json.loads(Path("cost.json").read_text())
    for row, model in zip(report["models"], (trained, path), strict=True):
        errors = evaluate(mdops.load(model), rest).errors()
        assert row["force_rmse"] == errors["forces"].rmse and row["energy_rmse"] == errors["energy"].rmse
        assert row["drift"] is None
    fitted = quantize(mdops.load(trained), scheme, load_dataset(SYSTEM, ["Cu", "Al"], leave_out=5))
    for one, other in zip(
        fitted.model.fitting.nets.nets, mdops.load(path).model.fitting.nets.nets, strict=True
    ):
        assert all(
            torch.equal(a.multiplied, b.multiplied) for a, b in zip(one.layers, other.layers, strict=True)
        )


def test_the_drift_is_of_dynamics(command, capsys):
    assert command(drift="0.05", scheme="w8") == 0
    out, err = capsys.readouterr()
    assert "dynamics of both models for 0.05 ps (--drift 0: none)\n" in err
    rows = [line for line in out.splitlines() if line.startswith(("float32", "w8 "))]
    assert len([row for row in rows if " +- " in row]) == 2


def test_training_mends_what_ternary_weights_lose(command, capsys):
    frames = ["--test", SYSTEM, "--report", "cost.json"]
    assert command("-o", "rounded.safetensors", *frames, scheme="ternary") == 0
    before = json.loads(Path("cost.json").read_text())["models"][1]["force_rmse"]
    assert "LOSES ACCURACY: force RMSE" in capsys.readouterr().out
    assert command("-o", "trained.dp", "--steps", "200", *frames, scheme="ternary") == 0
    after = json.loads(Path("cost.json").read_text())["models"][1]["force_rmse"]
    assert after < 0.8 * before
    out, err = capsys.readouterr()
    assert "ternary: training in trained.dp.training\n" in err and "low-bit numbers (ternary)" in err
    assert "200 steps in" in out
    model = mdops.load("trained.dp")
    assert (
        model.scheme.name == "ternary"
        and model.source["training"].items() >= {"step": 200, "steps": 200}.items()
    )
    # What is in the file are ternary numbers.
    layer = model.model.fitting.net(0).layers[1]
    assert len(np.unique((layer.weight / layer.balance[:, None])[:, 0].detach())) == 3


def test_a_training_that_is_stopped_goes_on_to_the_same_model(command, capsys, monkeypatch):
    steps = ["--steps", "12", "--checkpoint-every", "4", "--seed", "3"]
    assert command(*steps, "-o", "whole.safetensors") == 0
    # Of 20 frames, 4 are tested.
    told = "on 16 frames with 512 atoms (Cu, Al), validation on 4; 12 steps, seed 3"
    assert told in capsys.readouterr().err

    with interrupted(7):
        assert command(*steps, "-o", "run.safetensors", "--restart") == 130
    assert not Path("run.safetensors").exists()
    assert command(*steps, "-o", "run.safetensors") == 2
    assert "belongs to an earlier training: continue it with --restart" in capsys.readouterr().err
    assert command(*steps, "-o", "run.safetensors", "--restart", scheme="w8") == 2
    assert "has a training of w8a8, but --scheme is w8" in capsys.readouterr().err
    assert command(*steps, "-o", "run.safetensors", "--restart") == 0
    assert "from step 4 of 12" in capsys.readouterr().err
    assert torch.equal(weights("run.safetensors"), weights("whole.safetensors"))
    # The weights that are trained are more than those in the file: a restart has them from the checkpoint.
    kept = load_checkpoint(Path("run.safetensors.training/model.ckpt-12.pt"))["branches"][""]["model"][
        "weights"
    ]
    (name,) = (name for name in kept if name.endswith("nets.0.0.weight"))
    assert not torch.equal(kept[name], mdops.load("run.safetensors").model.fitting.net(0).layers[0].weight)


def test_what_does_not_fit_is_refused_before_the_work(command, trained, capsys):
    Path("there.safetensors").write_text("of somebody")
    for more, says in (
        (["-o", "there.safetensors"], "there.safetensors exists already; --overwrite replaces it"),
        (["-o", "model.pb"], "the suffix '.pb' cannot be written"),
        (["-o", trained], "is also the input model"),
        (["-o", trained, "--overwrite"], "is also the input model"),
        (["--steps", "-1"], "must be positive"),
        (["--restart"], "without --steps there is none"),
        (["--drift", "-1"], "--drift -1.0: expected ps"),
        (["--drift-temperature", "0"], "--drift-temperature 0.0: expected K"),
        (["--report", "no/folder.json"], "--report no/folder.json: there is no folder no to write into"),
        (["--names", "energy"], "expected LABEL=NAME"),
        (["--test", "nowhere"], "nowhere: there is no such file"),
    ):
        assert command(*more) == 2
        assert says in capsys.readouterr().err, more
    assert Path("there.safetensors").read_text() == "of somebody"
    assert command("-o", "there.safetensors", "--overwrite") == 0
    assert main(["quantize", "there.safetensors", "--scheme", "w8", "--data", SYSTEM]) == 2
    assert "the model is low-bit already (w8a8): begin with the full one" in capsys.readouterr().err
    assert read_model("there.safetensors").source["quantized"] == "w8a8"


def test_frames_that_are_left_out(tmp_path):
    """Every fifth of a system, over its sets; messages name a frame by its number in its file."""
    whole = load_dataset(SYSTEM, ["Cu", "Al"])
    kept, left = (load_dataset(SYSTEM, ["Cu", "Al"], leave_out=5, left_out=which) for which in (False, True))
    assert len(kept) == 16 and len(left) == 4
    chosen = np.arange(20) % 5 == 4
    names = np.array([whole.name(f) for f in range(20)])
    for part, frames in ((kept, ~chosen), (left, chosen)):
        assert np.array_equal(part.labels["energy"], whole.labels["energy"][frames])
        assert [part.name(f) for f in range(len(part))] == list(names[frames])
        np.testing.assert_array_equal(part.cell, whole.cell[frames])
    with pytest.raises(mdops.errors.DataError, match="no system has 50 frames"):
        load_dataset(SYSTEM, ["Cu", "Al"], leave_out=50, left_out=True)
