"""Spectra have lines where their series oscillate, as high as the formulas say."""

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms, units

import mdops
from mdops.cli import main
from mdops.errors import InputError
from mdops.spectra import infrared, raman, responses, with_charges

OUTPUTS = Path(__file__).parents[1] / "data" / "outputs"
C = 2 * np.pi * units._c * 100 * 1e-15  # 1/cm in 1/fs


def oscillation(wavenumbers, frames=8000, interval=1.0):
    """(frames, 3), e A: of amplitude 1 along an axis each."""
    times = np.arange(frames) * interval
    return np.stack([np.cos(C * nu * times) for nu in wavenumbers], 1)


def test_lines_are_where_the_dipole_oscillates():
    found = infrared(oscillation([500, 1600, 3500]), 1.0, 1000.0, 300.0, resolution=20)
    peaks = [
        found.wavenumbers[k]
        for k in range(1, len(found.values) - 1)
        if found.values[k] > max(found.values[k - 1], found.values[k + 1], 0.01 * found.values.max())
    ]
    np.testing.assert_allclose(peaks, [500, 1600, 3500], atol=5)
    line = found.values[(found.wavenumbers > 1500) & (found.wavenumbers < 1700)]
    assert 18 < 5.0 * (line > line.max() / 2).sum() < 26  # the full width at half maximum is the resolution


@pytest.mark.parametrize(("interval", "wavenumber"), [(0.5, 1000), (1.0, 3700), (2.0, 3700)])
def test_the_area_is_that_of_the_sum_rule(interval, wavenumber):
    """Of a dipole of amplitude a the mean square of the rate is a^2 w^2 / 2; half of the integral's is at w > 0."""
    series = oscillation([wavenumber], 16000, interval)
    found = infrared(np.repeat(series, 3, 1), interval, 500.0, 350.0)
    rate = (units._e * 1e-10) ** 2 * (wavenumber * C * 1e15) ** 2 / 2 * 3
    volume, temperature = 500e-30, 350.0
    expected = (
        np.pi * rate / (6 * units._c * units._eps0 * volume * units._k * temperature)
    )  # over w, rad/s per m
    area = np.trapezoid(found.values * 100, found.wavenumbers) * C * 1e15
    assert area == pytest.approx(expected, rel=0.01)


def test_raman_lines_of_both_parts():
    times = np.arange(8000)
    tensors = np.zeros((8000, 3, 3))
    tensors += np.cos(C * 1000 * times)[:, None, None] * np.eye(3)
    tensors[:, 0, 1] = tensors[:, 1, 0] = np.cos(C * 2000 * times)
    found = raman(tensors, 1.0, 300.0)
    values = np.interp([1000, 2000, 1500], found.wavenumbers, found.values)
    assert values[2] < 1e-3 * values.min(initial=np.inf, where=[True, True, False])
    thermal = [
        nu * -np.expm1(-units._hplanck * units._c * 100 * nu / (units._k * 300)) for nu in (1000, 2000)
    ]
    # a' of amplitude 1, and (3/2) Tr b^2 = 3 cos^2 of the other: 45 : 7 * 3, times w^2 of the rates.
    expected = (21 * 2000**2 / thermal[1]) / (45 * 1000**2 / thermal[0])
    assert values[1] / values[0] == pytest.approx(expected, rel=0.02)


def test_charges_are_followed_across_the_walls():
    frames = [
        Atoms("OH", [[0.5, 0, 0], [x % 4, 0, 0]], cell=[4, 4, 4], pbc=True) for x in (3.0, 3.8, 4.6, 5.4)
    ]
    found = with_charges(np.zeros((4, 3)), frames, {"O": -1.0, "H": 1.0})
    np.testing.assert_allclose(found[:, 0], [2.5, 3.3, 4.1, 4.9])
    with pytest.raises(InputError, match="H has no charge; charges are given for O"):
        with_charges(np.zeros((4, 3)), frames, {"O": -1.0})


def structures(count):
    model = mdops.load(OUTPUTS / "dipole.dp")
    rng = np.random.default_rng(0)
    base = rng.uniform(0, 6, (6, 3))
    symbols = [model.type_map[k % len(model.type_map)] for k in range(6)]
    return [
        Atoms(symbols, base + 0.02 * np.sin(0.3 * k + np.arange(18).reshape(6, 3)), cell=[9, 9, 9], pbc=True)
        for k in range(count)
    ]


def test_responses_are_the_models_answers():
    model, frames = mdops.load(OUTPUTS / "dipole.dp", overflow="extend"), structures(20)
    np.testing.assert_allclose(responses(model, frames), model.compute(frames)["dipole"], atol=1e-6)
    with pytest.raises(InputError, match="there are no frames"):
        responses(model, [])


def test_the_command_writes_a_table_and_a_picture(tmp_path, capsys):
    from ase.io import write

    write(tmp_path / "run.xyz", structures(100), format="extxyz")
    arguments = ["spectrum", str(tmp_path / "run.xyz"), "-m", str(OUTPUTS / "dipole.dp"), "--interval", "1"]
    files = ["-o", str(tmp_path / "s.csv"), "--plot", str(tmp_path / "s.png")]
    assert main([*arguments, "--resolution", "800", *files]) == 0
    assert "100 frames, 99 fs" in capsys.readouterr().out
    part = [f"{arguments[1]}@:90:3", *arguments[2:], "--resolution", "2000", "--limit", "3000", *files]
    assert main([arguments[0], *part, "--overwrite"]) == 0
    assert "30 frames, 29 fs" in capsys.readouterr().out
    assert main([*arguments, "--resolution", "800", *files, "--overwrite"]) == 0
    table = np.loadtxt(tmp_path / "s.csv", delimiter=",", skiprows=1)
    assert table.shape == (20, 2) and table[-1, 0] == 4000 and (tmp_path / "s.png").is_file()
    others = ["-o", str(tmp_path / "t.csv"), "--plot", str(tmp_path / "t.png")]
    assert main([*arguments, *others]) == 2
    assert "takes" in capsys.readouterr().err
    assert main([*arguments, "--charges", "O:2", *others]) == 2
    assert "expected ELEMENT=NUMBER" in capsys.readouterr().err
    for kept in ([*files[:2], *others[2:]], [*others[:2], *files[2:]]):
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert main([*arguments, "--resolution", "800", *kept]) == 2
        assert "exists already; --overwrite replaces it" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"resolution": 0.1}, "a resolution of 0.1 1/cm takes"),
        ({"limit": 50000.0}, "have no wavenumbers beyond 16678"),
        ({"resolution": -1.0}, "resolution is -1, expected a positive number"),
    ],
)
def test_what_makes_no_sense_is_refused(options, match):
    with pytest.raises(InputError, match=match):
        infrared(oscillation([1000], 4000), 1.0, 1000.0, 300.0, **options)
