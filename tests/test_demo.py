"""`make demo`, shortened."""

import subprocess
import sys
from pathlib import Path

import ase.io
import pytest

DEMO = Path(__file__).parents[1] / "examples/demo.py"


def test_demo(tmp_path):
    pytest.importorskip("matplotlib")
    command = [sys.executable, DEMO, "--out", tmp_path, "--steps", "40", "--cells", "2"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "NVE of Al10Cu22" in result.stdout and "energy drift" in result.stdout
    for ensemble in ("nvt", "nve"):
        frames = ase.io.read(tmp_path / f"{ensemble}.traj", ":")
        assert len(frames) == 5
        assert len((tmp_path / f"{ensemble}.log").read_text().splitlines()) == 6
        energies = [(f.get_potential_energy() + f.get_kinetic_energy()) / len(f) for f in frames]
        assert ensemble == "nvt" or max(energies) - min(energies) < 1e-3
    assert (tmp_path / "energy.png").read_bytes().startswith(b"\x89PNG")
