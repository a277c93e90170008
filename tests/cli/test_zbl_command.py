"""`mdops zbl`: tables of the universal potential, which mdops and DeePMD-kit read alike."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mdops.cli import main
from mdops.errors import InputError
from mdops.models.pairtab import read_table
from mdops.zbl import energy, table

DEEPMD = Path(os.environ.get("MDOPS_DEEPMD_PYTHON", "deepmd-python"))


def test_the_formula():
    """Values of LAMMPS' formula for pair_style zbl, with its constants, which have other digits of the charge."""
    x = np.array([0.5, 1.2, 2.0]) * (29**0.23 + 13**0.23) / 0.46850
    c, d = [0.02817, 0.28022, 0.50986, 0.18175], [0.20162, 0.40290, 0.94229, 3.19980]
    wanted = (
        14.399645
        * 29
        * 13
        / np.array([0.5, 1.2, 2.0])
        * sum(a * np.exp(-b * x) for a, b in zip(c, d, strict=True))
    )
    np.testing.assert_allclose(energy("Cu", "Al", np.array([0.5, 1.2, 2.0])), wanted, rtol=4e-4)
    # Bare nuclei, in the end.
    assert energy("H", "He", np.array([1e-6]))[0] == pytest.approx(14.3996454 * 2 / 1e-6, rel=1e-4)


def test_tables_end_smoothly():
    rows = table(["O", "H"], step=0.02, cutoff=3.0, smooth_from=2.0)
    r, far = rows[:, 0], rows[:, 0] > 2.0
    assert rows.shape == (150, 4) and r[0] == 0.02 and r[-1] == pytest.approx(3.0)
    for column, (a, b) in enumerate([("O", "O"), ("O", "H"), ("H", "H")], start=1):
        u = rows[:, column]
        np.testing.assert_array_equal(u[~far], energy(a, b, r[~far]))
        assert u[-1] == 0 and (np.diff(u) < 0).all()
        slope = np.gradient(u, r)
        assert abs(slope[-2]) < 2e-3 * abs(slope[far][0])  # no kink at the cutoff


def test_command(tmp_path, capsys):
    path = tmp_path / "table.txt"
    assert main(["zbl", str(path), "Cu", "Al", "--step", "0.005", "--cutoff", "5"]) == 0
    assert "1,000 distances from 0.005 to 5 A, 3 pairs of Cu, Al" in capsys.readouterr().out
    found = read_table(path, 5.0, 2)
    assert found.first == 0.005 and found.step == pytest.approx(0.005) and found.last == 5.0
    # The cubics between the rows are the potential, but where a table begins.
    n, k = found.coefficients.shape[2], np.arange(10, 900)
    middle = found.coefficients[0, 1][k] @ np.array([0.125, 0.25, 0.5, 1.0])
    r = 0.005 * (k + 1.5)
    near = r < 4.0
    np.testing.assert_allclose(middle[near], energy("Cu", "Al", r[near]), rtol=1e-4)
    assert n == 999
    assert main(["zbl", str(path), "Cu"]) == 2 and "exists already" in capsys.readouterr().err
    assert main(["zbl", str(path), "Cu", "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["Qq"],), "'Qq' is not an element"),
        ((["Cu", "Cu"],), "each element of the model once"),
        ((["Cu"], 0.0), "expected them to rise"),
        ((["Cu"], 0.01, 2.0, 2.5), "expected them to rise"),
        ((["Cu"], 0.01, 1e20), "more than 1,000,000 distances"),
        ((["Cu"], 1e-320, 6.0), "more than 1,000,000 distances"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        table(*arguments)


@pytest.mark.skipif(not DEEPMD.exists(), reason="needs a Python with DeePMD-kit")
def test_deepmd_kit_reads_it_alike(tmp_path):
    path = tmp_path / "table.txt"
    main(["zbl", str(path), "O", "H", "--step", "0.01", "--cutoff", "6"])
    code = (
        "import sys, numpy as np; from deepmd.utils.pair_tab import PairTab; "
        "info, data = PairTab(sys.argv[1], rcut=6.0).get(); np.savez(sys.argv[2], info=info, data=data)"
    )
    subprocess.run([DEEPMD, "-c", code, path, tmp_path / "out.npz"], check=True, capture_output=True)
    found, theirs = read_table(path, 6.0, 2), np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(theirs["info"], [found.first, found.step, found.coefficients.shape[2], 2])
    scale = np.abs(found.coefficients).max()
    np.testing.assert_allclose(
        theirs["data"].reshape(found.coefficients.shape), found.coefficients, atol=1e-9 * scale
    )
