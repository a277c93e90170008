"""What the tests of other programs share."""

import runpy
from pathlib import Path

import pytest
import torch

from mdops.models.registry import find
from mdops.potential import Potential
from mdops.train import parse_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def example(monkeypatch, capsys):
    """Runs an example, and gives what it printed."""

    def run(name):
        path = ROOT / "examples" / f"{name}.py"
        monkeypatch.syspath_prepend(path.parent)
        runpy.run_path(str(path), run_name="__main__")
        assert len(path.read_text().splitlines()) <= 80
        return capsys.readouterr().out

    return run


@pytest.fixture
def untrained():
    """Makes a model of any elements with random weights, the same each time."""

    def make(type_map, dtype=torch.float64, device="cpu"):
        descriptor = {
            "type": "dpa1", "rcut": 4.0, "rcut_smth": 1.0, "neuron": [4, 8], "axis_neuron": 2, "sel": 80,
        }  # fmt: skip
        descriptor |= {"attn_layer": 0, "set_davg_zero": True}
        model = {"type_map": type_map, "descriptor": descriptor, "fitting_net": {"neuron": [8, 8]}}
        options = parse_config(
            {"model": model, "training": {"training_data": {"systems": "x"}, "numb_steps": 1}}
        ).model
        inner = find("model", options.KIND).random(options, 3, dtype)
        potential = Potential(inner, overflow="extend").eval()
        potential.use_spline()
        return potential.to(device)

    return make
