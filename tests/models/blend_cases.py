"""Models that are made of models, and pair tables: what is asked of them (tests/data/make_blends.py)."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from reference_cases import ANSWERS, SHARED, build, references, relative_error
from small_systems import EMT, stop_after
from trees import differences

import mdops
from mdops import system as systems
from mdops.calculator import MDOps
from mdops.io import read_model
from mdops.md import Engine, EnsembleSettings
from mdops.md.motion import set_velocities
from mdops.system import System
from mdops.train import PairLists, load_dataset, make_batch
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer
from mdops.train.model.random import random_potential

KINDS = Path(__file__).parents[1] / "data" / "reference_kinds"
# Float32 of a net is that of its answers; the largest error of a float32 model is in parts of the largest force.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-5}
# DeePMD-kit's own answers carry the rounding of float32 weights and products.
ROUNDED = ("zbl_float32",)


def cases(kind):
    """The names of the cases of a kind, and of those in ../shared."""
    return sorted(path.name for path in KINDS.glob(f"{kind}*")), [p.name for p in SHARED.glob(f"{kind}*")]


def folder_of(case):
    return KINDS / case if (KINDS / case).exists() else SHARED / case


def tree_of(case):
    return read_model(folder_of(case) / "model.dp").model


def potential_of(case, dtype=torch.float64):
    return build(tree_of(case), dtype, "truncate" if case.endswith("few_places") else "error")


def check_answers(case, dtype):
    """Energies in parts of the largest, forces and virials in parts of theirs."""
    potential, bound = potential_of(case, dtype), TOLERANCE[dtype]
    if case in ROUNDED:
        bound = 3e-5
    for reference in references(folder_of(case)):
        of_atoms = potential.reach == 1
        found = potential.evaluate(
            reference.system, None, reference.fparam, reference.aparam, atom_virial=of_atoms
        )
        for name in [name for name in ANSWERS if of_atoms or name != "atom_virial"]:
            error = relative_error(found[name], reference.answers[name])
            assert error < bound, (reference.name, name, error)


def alloy(repeat=(2, 1, 1), a=3.7, seed=0, rattle=0.1):
    """Cu and Al, as the elements of the cases."""
    atoms = bulk("Cu", cubic=True, a=a) * repeat
    atoms.symbols[::3] = "Al"
    atoms.positions += np.random.default_rng(seed).normal(0, rattle, atoms.positions.shape)
    return atoms


def check_nan(potential):
    """A place that is no number makes an energy and a force that are none, and no error."""
    system = _system(potential, alloy())
    neighbors = potential.neighbor_list(system)
    system.positions[0, 0] = torch.nan
    answers, _ = potential.evaluator()(system, neighbors, check=False)
    assert answers["atom_energy"][0].isnan() and answers["forces"][0].isnan().any()


def pair(distance, symbols="Cu2"):
    return Atoms(symbols, [[0, 0, 0], [0, 0, distance]])


def check_slopes(potential, atoms):
    """Forces are the slopes of energies, and their derivatives exist."""
    types = torch.tensor([potential.type_map.index(s) for s in atoms.get_chemical_symbols()])
    cell = torch.tensor(atoms.cell.array)
    pbc = torch.tensor(atoms.pbc)
    neighbors = potential.neighbor_list(_system(potential, atoms))

    def energy(positions):
        answers = potential(positions, types, cell, pbc, neighbors=neighbors)
        return answers["energy"]

    positions = torch.tensor(atoms.positions, requires_grad=True)
    assert torch.autograd.gradcheck(energy, (positions,), eps=1e-5, atol=1e-6, rtol=1e-5)


def check_dynamics(potential, atoms, steps=40, *, jumps=False):
    """ASE and the engine have the model's forces, which conserve the energy, unless that `jumps` at the cutoff."""
    atoms.calc = MDOps(potential, dtype=potential.dtype)
    assert np.allclose(atoms.get_forces(), potential.compute(atoms)["forces"], atol=1e-10)
    physics = EnsembleSettings("nve", 100, 0.5)
    set_velocities(atoms, physics, np.random.default_rng(0), anew=True)
    frames = list(Engine(atoms, potential, physics).run(steps, every=10))
    last = frames[-1].atoms(atoms)
    assert np.abs(last.positions - atoms.positions).max() > 0.005
    assert np.allclose(frames[-1].forces, potential.compute(last)["forces"], atol=1e-9)
    totals = [frame.energy + frame.kinetic for frame in frames]
    assert jumps or np.ptp(totals) < 1e-3 * max(frame.kinetic for frame in frames)


def check_on_gpu(case, dtype):
    potential, on_gpu = potential_of(case, dtype), potential_of(case, dtype).to("cuda")
    bound = 1e-10 if dtype == torch.float64 else 2e-5
    for reference in references(folder_of(case)):
        cpu_system = reference.system
        gpu_system = System(
            *(getattr(cpu_system, n).cuda() for n in ("positions", "types", "cell", "pbc", "batch"))
        )
        more = [None if p is None else p.cuda() for p in (reference.fparam, reference.aparam)]
        a = potential.evaluate(cpu_system, None, reference.fparam, reference.aparam)
        b = on_gpu.evaluate(gpu_system, None, *more)
        for name in ("energy", "forces", "virial"):
            assert relative_error(b[name].cpu(), a[name]) < bound, (reference.name, name)


def net_section(sel=60, **descriptor):
    """A small dpa1, as an input has it."""
    descriptor = {
        "type": "dpa1",
        "sel": sel,
        "rcut": 4.0,
        "rcut_smth": 2.0,
        "neuron": [4, 8],
        "axis_neuron": 3,
        "tebd_dim": 4,
        "attn_layer": 0,
        **descriptor,
    }
    return {"descriptor": descriptor, "fitting_net": {"neuron": [8, 8]}}


def table_section(folder):
    """A pair table; its file is written into the folder."""
    r = 0.5 + 0.1 * np.arange(40)
    u = np.exp(-1.5 * r) * np.clip(1 - r / 3.9, 0, None) ** 3
    np.savetxt(folder / "table.txt", np.stack([r, 20 * u, 30 * u, 40 * u], axis=1))
    return {"type": "pairtab", "tab_file": str(folder / "table.txt"), "rcut": 4.0, "sel": "auto"}


def config_of(model, **training):
    """The input of a training on EMT's data."""
    data = {"systems": str(EMT), "batch_size": 2}
    steps = {
        "numb_steps": 30,
        "save_freq": 10,
        "disp_freq": 29,
        "seed": 5,
        "precision": "float64",
        **training,
    }
    rate = {"start_lr": 5e-3, "stop_lr": 1e-4, "decay_steps": 5}
    return parse_config({"model": model, "learning_rate": rate, "training": {"training_data": data, **steps}})


def force_error(potential):
    """The rms error of all forces of EMT's data, eV/A."""
    data = load_dataset(EMT, ["Cu", "Al"])
    batch = make_batch(data, PairLists(data, potential.cutoff), np.arange(len(data)))
    found = potential.evaluate(batch.system, batch.neighbors)["forces"]
    return float(np.sqrt(np.square(found.numpy() - data.labels["forces"]).mean()))


def check_training(section, folder):
    """Errors fall; what is stopped and restarted ends with the same bits; the model is saved, and can be tuned."""

    config = config_of(section, disp_freq=5)
    whole = Trainer(config, folder / "whole")
    before = force_error(whole.potential)
    expected = whole.run()
    assert force_error(expected) < 0.8 * before
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, folder / "stopped").run(stop_after(15))
    again = Trainer(config, folder / "stopped", restart=True)
    assert again.step == 10
    found = again.run().state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.state_dict().items())
    saved = folder / "whole" / "model.safetensors"
    loaded = mdops.load(saved, dtype="float64")
    expected.use_spline()  # with the knots of simulation, as what is loaded has, where there are any
    atoms = alloy((2, 1, 1), 3.8)
    assert np.allclose(loaded.compute(atoms)["forces"], expected.compute(atoms)["forces"], rtol=0, atol=1e-12)
    tuned = Trainer(config, folder / "tuned", finetune=saved)
    assert tuned.potential.neighbors == expected.neighbors


def check_statistics(name, folder):
    """davg and dstd of the parts, and the energies of the types, of the inputs in make_blends.statistics."""
    first = {**net_section(40, rcut=3.8, rcut_smth=2.6), "type_map": ["Cu", "Al"]}
    table = table_section(folder)
    if name == "linear":
        second = net_section(40, rcut=4.4, rcut_smth=2.6, exclude_types=[[0, 0]])
        model = {"type": "linear_ener", "models": [first, second, table], "weights": "mean"}
        model["type_map"] = first["type_map"]
    else:
        model = {**first, "use_srtab": table["tab_file"], "sw_rmin": 1.8, "sw_rmax": 2.9}
    for part in [model, *model.get("models", [])]:
        if "descriptor" in part:
            part["descriptor"]["set_davg_zero"] = False
    config = config_of({**model, "pair_exclude_types": [[0, 1]], "data_stat_nbatch": 100})
    data = load_dataset(EMT, ["Cu", "Al"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the places are few
        found = random_potential(config, data, PairLists(data, 4.4), dtype=torch.float64).model
    with np.load(EMT.parent / "blend_statistics.npz") as file:
        expected = {key.removeprefix(f"{name}/"): file[key] for key in file.files if key.startswith(name)}
    assert np.allclose(found.out_bias, expected["out_bias"], rtol=1e-9)
    assert np.allclose(found.out_std, expected["out_std"], rtol=1e-9)
    for i, part in enumerate(found.models):
        assert np.array_equal(part.out_bias, expected[f"{i}/out_bias"])
        for descriptor in part.descriptors:
            assert np.allclose(descriptor.mean, expected[f"{i}/davg"], rtol=1e-10)
            assert np.allclose(descriptor.std, expected[f"{i}/dstd"], rtol=1e-10)


def _system(potential, atoms):
    return systems.from_atoms([atoms], potential.type_map, potential.device)


class BlendTests:
    """What the files of models that are made of models test; `conftest` gives each `case`.

    Attributes:
        CASES: of DeePMD-kit's answers, and those of ../shared. ON_GPU: those whose answers a GPU gives, too.
    """

    CASES: tuple[list[str], list[str]]
    ON_GPU: tuple[str, ...]

    @classmethod
    def cases_of(cls, test):
        own, shared = cls.CASES
        return {"test_saved_and_read": own, "test_gpu_and_cpu_agree": cls.ON_GPU}.get(test, own + shared)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_answers_are_deepmd_kits(self, case, dtype):
        check_answers(case, dtype)

    def test_saved_and_read(self, tmp_path, case):
        potential_of(case).save(tmp_path / "model.dp")
        assert not differences(read_model(tmp_path / "model.dp").model, tree_of(case))

    @pytest.mark.gpu
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
    def test_gpu_and_cpu_agree(self, case, dtype):
        check_on_gpu(case, dtype)
