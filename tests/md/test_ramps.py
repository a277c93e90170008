"""Temperatures and pressures that change along a run."""

import dataclasses

import numpy as np
import pytest
from engine_cases import MODEL, PHYSICS, alloy

from mdops.cli import main
from mdops.errors import InputError
from mdops.md import BatchEngine, Engine, EnsembleSettings, Output, run
from mdops.md.engine import propagators

RAMPS = {
    "nose-hoover": dataclasses.replace(PHYSICS["nose-hoover"], final_temperature=900, ramp_steps=600),
    "langevin": dataclasses.replace(PHYSICS["langevin"], final_temperature=50, ramp_steps=600),
    "npt": dataclasses.replace(PHYSICS["npt"], final_temperature=100, final_pressure=12, ramp_steps=600),
    "flexible": dataclasses.replace(PHYSICS["flexible"], final_pressure=4, ramp_steps=600),
}


@pytest.mark.parametrize("ramp_steps", [1, 99, 250, 1003, 20_007])
def test_ramp_stages(ramp_steps):
    """They follow the ramp, each with its mean, and come to their ends where `ramp_stage_end` says."""
    physics = EnsembleSettings(
        "npt", 300, final_temperature=500, pressure=1, final_pressure=-3, ramp_steps=ramp_steps
    )
    steps = np.arange(ramp_steps + 5)
    temperatures, pressures = np.transpose([physics.goals(int(k)) for k in steps])
    on = steps < ramp_steps
    assert (temperatures[~on] == 500).all() and (pressures[~on] == -3).all()
    stages = min(100, max(1, ramp_steps // 100))
    assert len(set(temperatures[on])) == stages
    straight = 300 + 200 * (steps[on] + 0.5) / ramp_steps
    assert np.abs(temperatures[on] - straight).max() <= 200 / stages
    assert temperatures[on].mean() == pytest.approx(400, abs=200 / stages / 4)
    np.testing.assert_allclose(pressures, 1 - 4 * (temperatures - 300) / 200, atol=1e-12)
    for k in steps:
        end = physics.ramp_stage_end(int(k))
        assert end > k
        if np.isfinite(end):
            assert temperatures[int(end) - 1] == temperatures[k] != temperatures[int(end)]
        else:
            assert not on[k]


@pytest.mark.parametrize("name", RAMPS)
def test_each_step_has_the_goals_of_its_stage(models, name, monkeypatch):
    """Whatever the blocks are, and where they are done again."""
    seen, physics = [], RAMPS[name]
    for kind in (propagators.Propagator, propagators.CellPropagator):
        plain = kind.first_half

        def first_half(self, state, plain=plain, kind=kind):
            if type(self) is kind:
                seen.append((self._kT / propagators.units.kB, self._pressure / propagators.units.GPa))
            return plain(self, state)

        monkeypatch.setattr(kind, "first_half", first_half)
    starts, set_targets = [], propagators.Propagator.set_targets

    def noted(self, first):
        starts.append((first, len(seen)))
        return set_targets(self, first)

    monkeypatch.setattr(propagators.Propagator, "set_targets", noted)
    engine = Engine(alloy(physics), models("cpu"), physics, step=250)
    for _ in engine.run(370):
        pass
    assert engine.frame().conserved is None
    for (first, begin), (_, end) in zip(starts, [*starts[1:], (None, len(seen))], strict=True):
        wanted = [physics.goals(first + k) for k in range(end - begin)]
        np.testing.assert_allclose(seen[begin:end], wanted, rtol=1e-12)
    assert len(set(seen)) == 5  # the third stage to the sixth, and the end


@pytest.mark.parametrize("name", RAMPS)
def test_one_step_at_a_time_is_the_same(models, device, name):
    physics, potential = RAMPS[name], models(device)
    whole = Engine(alloy(physics), potential, physics, step=170)
    list(whole.run(70))
    parts = Engine(alloy(physics), potential, physics, step=170)
    for _ in range(7):
        for _ in parts.run(10):
            pass
    limit = 1e-9 if device == "cpu" else 1e-3
    np.testing.assert_allclose(parts.frame().positions, whole.frame().positions, atol=limit)
    constant = dataclasses.replace(physics, final_temperature=None, final_pressure=None, ramp_steps=0)
    still = Engine(alloy(physics), potential, constant, step=170)
    list(still.run(70))
    assert np.abs(still.frame().positions - whole.frame().positions).max() > 1e-4


def test_the_temperature_follows(models):
    """Eight systems from 100 K to 800 K, by Langevin dynamics with much friction."""
    physics = EnsembleSettings("nvt", 100, 2, "langevin", friction=50, final_temperature=800, ramp_steps=800)
    engine = BatchEngine([alloy(physics, seed=k) for k in range(8)], models("cpu"), physics)
    temperatures = [engine.temperature(frame.kinetic).mean() for frame in engine.run(800, every=40)]
    goals = [physics.goals(k)[0] for k in range(40, 801, 40)]
    # It is behind by its rate over the friction, 9 K.
    assert np.abs(np.array(temperatures) - goals).mean() < 90
    assert np.mean(temperatures[-4:]) > 3 * np.mean(temperatures[:4])


@pytest.mark.parametrize("name", ["nose-hoover", "npt"])
def test_a_restart_goes_on_with_the_ramp(alloy_with, tmp_path, name):
    physics = dataclasses.replace(RAMPS[name], checkpoint_every=50)

    def go(folder, steps, **options):
        atoms = alloy_with(physics)
        options = {"interval": 10, "trajectory": folder / "md.traj", **options}
        run(atoms, physics, Output(steps, folder / "md.restart", **options))
        return atoms

    (one := tmp_path / "one").mkdir(), (two := tmp_path / "two").mkdir()
    whole = go(one, 130)
    go(two, 50)
    again = go(two, 130, restart=True)
    assert np.array_equal(whole.positions, again.positions)
    assert np.array_equal(whole.get_momenta(), again.get_momenta())


@pytest.fixture
def alloy_with(models):
    from mdops.calculator import MDOps

    def made(physics):
        atoms = alloy(physics)
        atoms.calc = MDOps(models("cpu"))
        return atoms

    return made


def test_the_command_ramps_over_its_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    alloy(PHYSICS["nve"]).write("start.extxyz")
    command = ["md", "start.extxyz", "-m", str(MODEL), "--ensemble", "nvt", "-T", "300", "--steps", "40"]
    assert main([*command, "--final-temperature", "600", "--interval", "20"]) == 0
    assert " nan " in (tmp_path / "md.log").read_text()  # nothing is conserved
    capsys.readouterr()
    assert main([*command, "--final-temperature", "700", "--restart"]) == 2
    assert "final_temperature (600.0, now 700.0)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"ensemble": "nve", "final_temperature": 500.0, "ramp_steps": 5}, "nve has no thermostat"),
        (
            {"ensemble": "nvt", "final_pressure": 1.0, "ramp_steps": 5},
            "nvt has no pressure that could change",
        ),
        ({"ensemble": "nvt", "final_temperature": 0.0, "ramp_steps": 5}, "final_temperature is 0"),
        ({"ensemble": "nvt", "final_temperature": 500.0}, "ramp_steps is 0"),
        ({"ensemble": "nvt", "ramp_steps": 10}, "ramp_steps is 10"),
        ({"ensemble": "npt", "final_pressure": np.inf, "ramp_steps": 5}, "final_pressure is inf"),
    ],
)
def test_ramps_that_cannot_be_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        EnsembleSettings(temperature=300, **options)
