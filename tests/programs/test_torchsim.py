"""`MDOpsModel` in TorchSim: its own check of a model, and its runs beside ASE's and BatchEngine's numbers."""

from pathlib import Path

import numpy as np
import pytest
import spin_models
import torch
from ase import units
from ase.build import bulk, molecule
from ase.io import read

import mdops
from mdops import verlet
from mdops.errors import InputError
from mdops.ops import neighbor_list

ts = pytest.importorskip("torch_sim", reason="TorchSim is not installed (pip install 'mdops[torchsim]')")

from torch_sim.models.interface import validate_model_outputs  # noqa: E402

from mdops.torchsim import MDOpsModel  # noqa: E402

MODEL = Path(__file__).parents[1] / "data" / "formats" / "model.dp"
NEW = hasattr(ts, "Integrator")  # since TorchSim 0.4
EXTRAS = hasattr(ts.SimState, "atom_extras")  # since TorchSim 0.6


def crystals(count=6):
    frames = []
    for k in range(count):
        atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 1 + k % 2)
        atoms.symbols[k % 4] = "Al"
        atoms.rattle(0.05, seed=k)
        frames.append(atoms)
    return frames


@pytest.fixture
def model(device):
    return MDOpsModel(MODEL, dtype="float64", device=device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torchsims_own_check_passes(untrained, device, dtype):
    # The crystals of the check in 0.3 and in 0.6, and benzene.
    model = MDOpsModel(untrained(["H", "C", "Mg", "Si", "Fe"], device=device))
    validate_model_outputs(model, torch.device(device), dtype)


def test_a_batch_has_the_potentials_answers(model):
    frames = crystals()
    frames[1].set_cell(
        frames[1].cell.array + np.array([[0, 0, 0], [0.4, 0, 0], [0.1, 0.2, 0]])
    )  # rows, not columns
    state = ts.io.atoms_to_state(frames, model.device, model.dtype)
    found, wanted = model(state), model.potential.compute(frames)
    np.testing.assert_allclose(found["energy"].cpu(), wanted["energy"], atol=1e-9)
    np.testing.assert_allclose(found["forces"].cpu(), wanted["forces"], atol=1e-9)
    volume = np.array([atoms.get_volume() for atoms in frames])
    np.testing.assert_allclose(found["stress"].cpu(), -wanted["virial"] / volume[:, None, None], atol=1e-12)
    assert all(value.dtype == torch.float64 for value in found.values())


def test_systems_are_evaluated_in_one_call(model, monkeypatch):
    calls = []
    whole = model.potential.evaluate
    monkeypatch.setattr(
        model.potential, "evaluate", lambda s, *rest, **more: calls.append(s.count) or whole(s, *rest, **more)
    )
    state = ts.io.atoms_to_state(crystals(), model.device, model.dtype)
    model(state)
    assert calls == [6]


def test_lists_are_kept_while_atoms_move_little(model, monkeypatch):
    built = []
    monkeypatch.setattr(
        verlet, "neighbor_list", lambda *args, **more: built.append(args) or neighbor_list(*args, **more)
    )
    state = ts.io.atoms_to_state(crystals(), model.device, model.dtype)
    for step in range(4):
        state.positions = state.positions + 0.01
        model(state)
        if not step:
            first = len(built)  # once more where rows have to grow
        assert len(built) == first > 0, step
    state.positions = state.positions + 2.0
    moved = model(state)
    assert len(built) > first
    fresh = MDOpsModel(model.potential)(state)
    assert torch.equal(moved["energy"], fresh["energy"])


def test_other_systems_are_not_taken_for_the_last(model):
    first = ts.io.atoms_to_state(crystals(), model.device, model.dtype)
    second = ts.io.atoms_to_state(crystals()[::-1], model.device, model.dtype)
    expected = MDOpsModel(model.potential)(second)["energy"]
    model(first)
    np.testing.assert_array_equal(model(second)["energy"].cpu(), expected.cpu())
    changed = first.clone()
    model(first)
    changed.atomic_numbers[0] = 13 + 29 - changed.atomic_numbers[0]
    assert model(changed)["energy"][0] != model(first)["energy"][0]
    before = model(first)["energy"][0].item()
    first.atomic_numbers[0] = 13 + 29 - first.atomic_numbers[0]  # in place
    assert model(first)["energy"][0].item() != before


def test_molecules_have_no_stress(untrained, device):
    model = MDOpsModel(untrained(["H", "C"], device=device))
    found = model(ts.io.atoms_to_state([molecule("C6H6"), molecule("CH4")], model.device, model.dtype))
    wanted = model.potential.compute([molecule("C6H6"), molecule("CH4")])
    np.testing.assert_allclose(found["energy"].cpu(), wanted["energy"], atol=1e-12)
    assert found["stress"].isnan().all()
    model.compute_stress = model.compute_forces = False
    assert list(model(ts.io.atoms_to_state([molecule("CH4")], model.device, model.dtype))) == ["energy"]


def test_unknown_elements_are_named(model):
    with pytest.raises(InputError, match="the model does not know Fe, Mg; its elements are Cu, Al"):
        model(ts.io.atoms_to_state([bulk("Mg"), bulk("Fe")], model.device, model.dtype))


def test_frame_parameters(tmp_path):
    path = Path(__file__).parents[1] / "data/reference/fparam/model.dp"
    potential = mdops.load(path, dtype="float64", overflow="extend")
    atoms = bulk(potential.type_map[0], "fcc", a=4.0, cubic=True)
    size = potential.parameter_sizes["fparam"]
    found = MDOpsModel(potential, fparam=np.full(size, 0.3))(
        ts.io.atoms_to_state([atoms, atoms], torch.device("cpu"), torch.float64)
    )
    wanted = potential.compute(atoms, fparam=np.full(size, 0.3))["energy"]
    np.testing.assert_allclose(found["energy"], np.tile(wanted, 2), atol=1e-12)
    with pytest.raises(InputError, match=r"fparam\[0\] is nan, expected finite numbers"):
        MDOpsModel(potential, fparam=np.full(size, np.nan))
    with pytest.raises(InputError, match="the model needs fparam"):
        MDOpsModel(potential)(ts.io.atoms_to_state([atoms], torch.device("cpu"), torch.float64))


def state_with_moments(frames, model):
    """Before TorchSim 0.6 under the name that it has there."""
    if EXTRAS:
        extras = {"magnetic_moments": "initial_magmoms"}
        return ts.io.atoms_to_state(frames, model.device, model.dtype, atom_extras_map=extras)
    state = ts.io.atoms_to_state(frames, model.device, model.dtype)
    moments = np.concatenate([atoms.arrays["initial_magmoms"] for atoms in frames])
    state.atom_extras = {"magnetic_moments": torch.tensor(moments, device=model.device)}
    return state


@pytest.mark.skipif(EXTRAS, reason="this version of TorchSim has states with moments")
def test_a_state_that_cannot_have_moments_is_refused():
    model = MDOpsModel(spin_models.model("se_e2_a"))
    with pytest.raises(InputError, match=r"the state has none: make it with .* TorchSim 0\.6"):
        model(ts.io.atoms_to_state([spin_models.crystal()], model.device, model.dtype))


@pytest.mark.parametrize("kind", ["se_e2_a", "dpa4"])
def test_magnetic_moments_of_a_state(kind, device):
    """As virtual atoms and as vectors; vectors, and numbers along z."""
    model = MDOpsModel(spin_models.model(kind).to(device))
    frames = [spin_models.crystal(0), spin_models.crystal(1)]
    for vectors in (True, False):
        for atoms in frames if not vectors else ():
            del atoms.arrays["initial_magmoms"]
            atoms.set_initial_magnetic_moments(np.linspace(0.5, 1.5, 8))
        found = model(state_with_moments(frames, model))
        wanted = model.potential.compute(frames)
        for name in ("energy", "forces", "force_mag"):
            limit = 1e-9 * np.abs(wanted[name]).max()
            np.testing.assert_allclose(found[name].cpu(), wanted[name], rtol=0, atol=limit)
    with pytest.raises(InputError, match=r"the state has none: make it with .* TorchSim 0\.6"):
        model(ts.io.atoms_to_state(frames, model.device, model.dtype))


@pytest.mark.skipif(not EXTRAS, reason="states of this version of TorchSim have no moments")
@pytest.mark.parametrize("batches", [True, False])
def test_integrate_keeps_magnetic_moments(batches):
    model = MDOpsModel(spin_models.model("dpa4"))
    frames = [spin_models.crystal(0), spin_models.crystal(1).repeat((1, 1, 2))]
    state = state_with_moments(frames, model)
    memory = dict(memory_scales_with="n_atoms", max_memory_scaler=20)
    batcher = ts.BinningAutoBatcher(model=model, **memory) if batches else False
    final = ts.integrate(
        system=state, model=model, integrator=ts.Integrator.nve, n_steps=20, temperature=300, timestep=0.0005,
        autobatcher=batcher,
    )  # fmt: skip
    assert torch.equal(final.magnetic_moments, state.magnetic_moments)
    for atoms, own in zip(frames, final.split(), strict=True):
        assert (own.positions.numpy() - atoms.positions).std() > 0.01
        atoms.positions[:] = own.positions.numpy()
        wanted = model.potential.compute(atoms)
        assert own.energy.item() == pytest.approx(wanted["energy"][0], rel=1e-9)
        np.testing.assert_allclose(own.forces, wanted["forces"], rtol=0, atol=1e-9)


def test_integrate_conserves_energy_with_autobatching(model, tmp_path):
    frames = crystals()
    nve = ts.Integrator.nve if NEW else ts.nve
    memory = dict(memory_scales_with="n_atoms", max_memory_scaler=60)
    batcher = ts.BinningAutoBatcher(model=model, **memory)
    reporter = ts.TrajectoryReporter(
        [str(tmp_path / f"{k}.h5") for k in range(len(frames))],
        state_frequency=50,
        prop_calculators={
            10: {
                "total": lambda state: (
                    state.energy
                    + ts.calc_kinetic_energy(
                        masses=state.masses, momenta=state.momenta, system_idx=state.system_idx
                    )
                )
            }
        },
    )
    final = ts.integrate(
        system=frames, model=model, integrator=nve, n_steps=100, temperature=300, timestep=0.001, autobatcher=batcher,
        trajectory_reporter=reporter,
    )  # fmt: skip
    reporter.close()
    sizes = [len(atoms) for atoms in frames]
    assert final.n_systems == 6 and final.n_atoms == sum(sizes)
    wanted = model.potential.compute(final.to_atoms())  # the order is that of the input
    np.testing.assert_allclose(final.energy.cpu(), wanted["energy"], atol=1e-8)
    for k in range(6):
        with ts.TorchSimTrajectory(str(tmp_path / f"{k}.h5")) as trajectory:
            total = trajectory.get_array("total").ravel()
        # Velocity Verlet of 1 fs: what is left of an oscillation, and no drift.
        assert len(total) >= 10 and np.abs(total[1:] - total[1]).max() < 1e-3 * sizes[k]
        assert abs(total[-1] - total[1]) < 3e-4 * sizes[k]


def test_a_step_is_that_of_ase(model, device):
    """Velocity Verlet from the same positions and momenta."""
    from ase.md.verlet import VelocityVerlet

    from mdops.calculator import MDOps

    (atoms,) = crystals(1)
    atoms.set_momenta(np.random.default_rng(0).normal(scale=0.5, size=(len(atoms), 3)))
    nve = ts.Integrator.nve if NEW else ts.nve
    state = ts.io.atoms_to_state([atoms], model.device, model.dtype)
    if not NEW:
        init, step = nve(model=model, dt=torch.tensor(1.0 * units.fs), kT=torch.tensor(0.0))
        now = init(state, kT=torch.tensor(0.0), seed=1)
    else:
        init, step = ts.INTEGRATOR_REGISTRY[nve]
        now = init(state, model, kT=torch.tensor(0.0, device=device))
    now.momenta = torch.as_tensor(atoms.get_momenta(), device=model.device)
    for _ in range(5):
        now = (
            step(now, dt=torch.tensor(units.fs))
            if not NEW
            else step(now, model, dt=torch.tensor(units.fs, device=device))
        )
    atoms.calc = MDOps(model.potential)
    VelocityVerlet(atoms, units.fs).run(5)
    theirs = now.positions.cpu().numpy()
    cell = atoms.cell.array
    off = (theirs - atoms.positions) @ np.linalg.inv(cell)
    np.testing.assert_allclose((off - off.round()) @ cell, 0, atol=1e-9)


def test_optimize_with_autobatching_finds_the_crystal(model):
    frames = crystals()
    memory = dict(memory_scales_with="n_atoms", max_memory_scaler=60)
    batcher = ts.InFlightAutoBatcher(model=model, **memory)
    fire = ts.Optimizer.fire if NEW else ts.unit_cell_fire
    options = dict(init_kwargs={"cell_filter": ts.CellFilter.frechet}) if NEW else {}
    done = ts.generate_force_convergence_fn(force_tol=0.01, include_cell_forces=True)
    final = ts.optimize(
        system=frames,
        model=model,
        optimizer=fire,
        autobatcher=batcher,
        convergence_fn=done,
        max_steps=500,
        **options,
    )
    found = model(final)
    assert found["forces"].norm(dim=1).max() < 0.011
    assert found["stress"].abs().max() * frames[0].get_volume() < 0.5
    before = model(ts.io.atoms_to_state(frames, model.device, model.dtype))["energy"]
    assert (found["energy"] < before - 0.01).all()


def test_directions_that_are_no_longer_periodic_are_seen(model):
    """On the same tensors."""
    (atoms, *_) = crystals(1)
    state = ts.io.atoms_to_state([atoms], model.device, model.dtype)
    before = model(state)["energy"]
    if torch.is_tensor(state.pbc):
        state.pbc[2] = False
        atoms.pbc = [True, True, False]
    else:
        state.pbc, atoms.pbc = False, False
    after = model(state)
    np.testing.assert_allclose(after["energy"].cpu(), model.potential.compute(atoms)["energy"], atol=1e-10)
    assert abs(float(after["energy"] - before)) > 0.1 and after["stress"].isnan().all()


def test_the_example_runs(example):
    assert "us an atom" in example("torchsim_md")


def test_the_structure_is_read_as_ase_reads_it(tmp_path, model):
    """A slab: TorchSim's one `pbc` for all systems may differ between directions since 0.4."""
    if not NEW:
        pytest.skip("TorchSim 0.3 knows no slabs")
    slab = bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)
    slab.center(vacuum=5.0, axis=2)
    slab.pbc = [True, True, False]
    slab.write(tmp_path / "slab.extxyz")
    state = ts.io.atoms_to_state([read(tmp_path / "slab.extxyz")], model.device, model.dtype)
    found = model(state)
    np.testing.assert_allclose(found["energy"].cpu(), model.potential.compute(slab)["energy"], atol=1e-10)
    assert found["stress"].isnan().all()
