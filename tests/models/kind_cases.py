"""What every kind of descriptor must satisfy, for the tests of each kind."""

import copy
import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from reference_cases import SHARED, build, references, relative_error
from small_systems import EMT
from trees import differences

import mdops
from mdops.calculator import MDOps
from mdops.errors import InputError
from mdops.io import read_model
from mdops.md import EnsembleSettings
from mdops.md.engine import Engine
from mdops.md.motion import set_velocities
from mdops.models import model_of_tree
from mdops.system import from_atoms
from mdops.train import PairLists, load_dataset
from mdops.train.config.read import parse_config
from mdops.train.loop.trainer import Trainer
from mdops.train.model.random import random_potential
from mdops.train.model.types import with_elements

DATA = Path(__file__).parents[1] / "data"
KINDS = DATA / "reference_kinds"
LIMITS = {"float64": (1e-9, 1e-9), "float32": (5e-6, 3e-5)}  # of energies, and of what is differentiated


def cases(*starts):
    """The names of the cases that begin so."""
    return sorted(path.name for path in KINDS.iterdir() if path.is_dir() and path.name.startswith(starts))


def load_case(case, dtype="float64", device="cpu"):
    """With the nets themselves; tests/models/test_moments.py is about their splines."""
    overflow = "truncate" if case.endswith("few_places") else "error"
    return mdops.load(KINDS / case / "model.dp", dtype=dtype, device=device, overflow=overflow, spline=False)


def check_reference(case, dtype):
    """Every answer for every system of a case, with atomic virials and without."""
    potential = load_case(case, dtype)
    # DeePMD-kit itself computed such a model in float32.
    limits = LIMITS["float32" if case.endswith("float32") else dtype]
    for one in references(KINDS / case):
        for atom_virial in (False, True):
            found = potential.evaluate(one.system, None, one.fparam, one.aparam, atom_virial=atom_virial)
            assert ("atom_virial" in found) == atom_virial and {"forces", "virial"} <= found.keys()
            for name in found.keys() & comparable(potential, one):
                error = relative_error(found[name], one.answers[name])
                assert error < limits["energy" not in name], f"{one.name}: {name} is off by {error:.1e}"


def comparable(potential, one):
    """The answers that are DeePMD-kit's. Of models that pass messages its atomic virials are those of open systems
    alone, and DPA-4's never (docs/how-to/heat.md)."""
    kinds = {d.kind for d in potential.model.descriptors}
    other = potential.reach > 1 and (bool(one.system.pbc.any()) or "dpa4" in kinds)
    return one.answers.keys() - ({"atom_virial"} if other else set())


def check_larger(case, single=3e-5, double=1e-9, ending="dp", **options):
    """The answers of a model of ../shared are DeePMD-kit's, in float64 and float32 (`single` is the limit of forces
    then); gives both potentials."""
    folder, potentials = SHARED / case, []
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    for dtype, limits in (("float64", (double, double)), ("float32", (3e-6, single))):
        potential = mdops.load(folder / f"model.{ending}", dtype=dtype, **options)
        potentials.append(potential)
        for one in references(folder):
            found = potential.evaluate(one.system, atom_virial=True)
            assert {"energy", "forces", "virial"} <= found.keys() & one.answers.keys()
            for name in found.keys() & comparable(potential, one):
                error = relative_error(found[name], one.answers[name])
                assert error < limits["energy" not in name], (
                    f"{one.name}, {dtype}: {name} is off by {error:.1e}"
                )
    return potentials


def check_round_trip(case, folder):
    """What is written is what was read, to the last bit and key, but for what DeePMD-kit writes and nobody reads."""
    wanted = plain(read_model(KINDS / case / "model.dp").model)
    potential = load_case(case)
    for suffix in ("dp", "yaml", "safetensors"):
        potential.save(folder / f"again.{suffix}", core=())  # tests/core has files with its part
        assert differences(plain(read_model(folder / f"again.{suffix}").model), wanted) == []
    # In float32 all digits are written, too: but of what has changed.
    potential = load_case(case, "float32")
    potential.save(folder / "again.dp")
    assert differences(plain(read_model(folder / "again.dp").model), wanted) == []
    weight = next(potential.model.fitting.parameters())
    with torch.no_grad():
        weight.mul_(1.5)
    potential.save(folder / "again.dp")
    changed = mdops.load(folder / "again.dp", dtype="float64", spline=False)
    assert torch.equal(next(changed.model.fitting.parameters()).float(), weight)
    others = zip(
        changed.model.descriptor.parameters(), load_case(case).model.descriptor.parameters(), strict=True
    )
    assert all(torch.equal(*pair) for pair in others)


def plain(tree):
    """Without the copy of the cutoffs that every descriptor has; DeePMD-kit leaves out their protection in some."""
    tree = copy.deepcopy(tree)
    for part in tree["descriptor"].get("list", [tree["descriptor"]]):
        part.pop("env_mat", None)
    return tree


def check_gradients(case):
    """First and second derivatives of the energies by positions, in float64."""
    tree = read_model(KINDS / case / "model.dp").model
    potential = build(tree, overflow="extend")
    atoms = bulk("Cu", a=3.7, cubic=True)
    positions = torch.tensor(atoms.positions) + 0.1 * torch.randn(
        4, 3, generator=torch.Generator().manual_seed(1)
    )
    types, cell = torch.tensor([0, 1, 1, 0]), torch.tensor(atoms.cell.array)

    def energy(x):
        return potential(x, types, cell)["energy"]

    x = positions.double().requires_grad_()
    assert torch.autograd.gradcheck(energy, x, atol=1e-8)
    assert torch.autograd.gradgradcheck(energy, x, atol=1e-7, fast_mode=True)


def check_no_neighbors(case):
    """Atoms that see none, virtual atoms alone, and no atoms, where memory that nothing writes holds NaN."""
    potential = load_case(case)
    one = references(KINDS / case)[0]
    fparam = None if one.fparam is None else one.fparam[0]
    aparam = None if one.aparam is None else one.aparam[0]
    types = torch.arange(len(potential.type_map))
    apart = 90.0 * torch.arange(len(types), dtype=torch.float64)[:, None] * torch.ones(3)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for found in (torch.full_like(types, -1), types[:0], types):
            answers = potential(apart[: len(found)], found, fparam=fparam, aparam=aparam, forces=True)
            assert not answers["forces"].any() and not answers["virial"].any()
            assert answers["atom_energy"].isfinite().all()
        several = answers["atom_energy"]
        potential.train()
        free = [p for p in potential.parameters() if p.requires_grad]
        answers = potential(apart, types, fparam=fparam, aparam=aparam, forces=True, create_graph=True)
        torch.testing.assert_close(answers["atom_energy"], several)
        loss = answers["energy"].sum() + answers["forces"].square().sum()
        grads = torch.autograd.grad(loss, free, allow_unused=True)
        assert all(g.isfinite().all() for g in grads if g is not None)
    finally:
        torch.use_deterministic_algorithms(False)


def training_input(descriptor, steps, precision="float64", **fitting):
    data = {"systems": str(EMT), "batch_size": 2}
    return parse_config(
        {
            "model": {
                "type_map": ["Cu", "Al"],
                "descriptor": descriptor,
                "fitting_net": {"neuron": [12, 12], "seed": 1, **fitting},
                "data_stat_nbatch": 20,
            },
            "learning_rate": {"type": "exp", "decay_steps": 10, "start_lr": 2e-2, "stop_lr": 1e-4},
            "loss": {"type": "ener", "start_pref_v": 0.1, "limit_pref_v": 1.0},
            "training": {
                "training_data": data,
                "numb_steps": steps,
                "seed": 3,
                "disp_freq": 4,
                "save_freq": 4,
                "precision": precision,
            },
        }
    )


def errors_of(potential):
    """Root mean squares over four frames of EMT."""
    data = load_dataset(EMT, ["Cu", "Al"])
    frames = [0, 6, 12, 18]
    own = [slice(data.offsets[k], data.offsets[k + 1]) for k in frames]
    found = potential.compute(
        [
            Atoms(
                [("Cu", "Al")[t] for t in data.types[part]],
                data.positions[part],
                cell=data.cell[k],
                pbc=data.pbc[k],
            )
            for k, part in zip(frames, own, strict=True)
        ]
    )
    labels = {
        "forces": np.concatenate([data.labels["forces"][part] for part in own]),
        "energy": data.labels["energy"][frames],
    }
    return {name: np.sqrt(np.mean((found[name] - labels[name]) ** 2)) for name in labels}


def check_training(descriptor, folder, steps=20):
    """The loss falls; the model is there afterwards; from a checkpoint on it ends with the same bits."""
    trainer = Trainer(training_input(descriptor, steps), folder)
    before = errors_of(trainer.potential)
    expected = trainer.run()
    after = errors_of(expected)
    assert after["forces"] < 0.98 * before["forces"] and after["energy"] < 0.99 * before["energy"]
    loaded = mdops.load(folder / "model.safetensors", dtype="float64")
    *_, step, last_but_one, last = sorted(int(p.stem[11:]) for p in folder.glob("model.ckpt-*.pt"))
    for later in (last_but_one, last):
        (folder / f"model.ckpt-{later}.pt").unlink()
    again = Trainer(training_input(descriptor, steps), folder, restart=True)
    assert again.step == step < last == steps
    found = again.run()
    for a, b in zip(expected.state_dict().values(), found.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    expected.use_spline()  # with the knots of simulation, as what is loaded has, where there are any
    atoms = alloy()
    np.testing.assert_allclose(loaded.compute(atoms)["forces"], expected.compute(atoms)["forces"], atol=1e-12)
    return expected


def new_potential(descriptor):
    """A model before training, with the statistics of all frames."""
    config = training_input(descriptor, 1)
    data = load_dataset(EMT, ["Cu", "Al"])
    return random_potential(config, data, PairLists(data, config.model.cutoff), seed=3, dtype=torch.float64)


def check_few_places(potential, cutoff):
    """Three places within a cutoff are too few for `alloy`, which an error says; truncated lists give other forces."""
    with pytest.raises(
        InputError, match=rf"\d+ neighbours within the cutoff of {cutoff} A, and the model's sel is 3"
    ):
        mdops.Potential(potential.model).compute(alloy())
    potential.overflow = "truncate"
    truncated = potential.compute(alloy())
    potential.overflow = "extend"
    assert np.abs(potential.compute(alloy())["forces"] - truncated["forces"]).max() > 1e-6


def check_one_product(double):
    """Forces with `matmul` "tf32" on a GPU are off by what one product in the place of three has."""
    box = bulk("Cu", cubic=True) * (2, 2, 2)
    box.symbols[::3] = "Al"
    box.rattle(0.1, seed=0)
    want = double.compute(box)["forces"]
    gpu = copy.deepcopy(double).float().to("cuda")
    exact = gpu.compute(box)["forces"]
    gpu.use_matmul("tf32")
    before, off = (
        np.abs(found - want).max() / np.abs(want).max() for found in (exact, gpu.compute(box)["forces"])
    )
    assert before < 3e-5 and 3 * before < off < 5e-3
    gpu.use_matmul("float32")
    assert (gpu.compute(box)["forces"] == exact).all()


def check_statistics(section, *names):
    """davg and dstd that each part of a descriptor takes of the frames of EMT are DeePMD-kit's; None: not compared."""
    for part, name in zip(new_potential(section).model.descriptors, names, strict=True):
        if name is not None:
            _check_part(part, name)


def _check_part(part, name):
    with np.load(KINDS / "statistics.npz") as file:
        davg, dstd = file[f"{name}/davg"], file[f"{name}/dstd"]
    np.testing.assert_allclose(part.mean.numpy(), davg[:, 0], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(part.std.numpy()[:, : dstd.shape[1]], dstd[:, :2], rtol=1e-12)


def check_fewer_types(case):
    """A model of some of a case's types, in another order, has the same answers."""
    potential, atoms = load_case(case), alloy()
    first, _, third = potential.type_map
    atoms.symbols[:] = first
    atoms.symbols[::3] = third
    own = with_elements(potential, [third, first])
    assert own.type_map == [third, first]
    for name, value in potential.compute(atoms).items():
        np.testing.assert_allclose(own.compute(atoms)[name], value, rtol=1e-12, atol=1e-12)


def alloy(seed=0):
    """32 atoms."""
    atoms = bulk("Cu", a=4.0, cubic=True) * (2, 2, 2)
    atoms.symbols[::4] = "Al"
    atoms.rattle(0.05, seed=seed)
    return atoms


def check_dynamics(potential):
    """ASE's forces are the slopes of its energy and its stress that of a strain; the engine conserves the energy."""
    atoms = alloy()
    atoms.calc = MDOps(potential)
    forces, stress = atoms.get_forces(), atoms.get_stress(voigt=False)
    random, step = np.random.default_rng(0), 1e-4
    direction = random.standard_normal(forces.shape)
    strain = random.standard_normal((3, 3))
    strain = strain + strain.T

    def energy(shift, stretch):
        moved = atoms.copy()
        moved.positions += shift * direction
        moved.set_cell(moved.cell.array @ (np.eye(3) + stretch * strain), scale_atoms=True)
        moved.calc = atoms.calc
        return moved.get_potential_energy()

    slope = (energy(step, 0) - energy(-step, 0)) / (2 * step)
    assert slope == pytest.approx(-(forces * direction).sum(), rel=1e-5, abs=1e-7)
    slope = (energy(0, step) - energy(0, -step)) / (2 * step)
    assert slope == pytest.approx(atoms.get_volume() * (stress * strain).sum(), rel=1e-5, abs=1e-6)

    physics = EnsembleSettings("nve", 100, 1.0)
    atoms.calc = None
    atoms.info.clear()
    set_velocities(atoms, physics, np.random.default_rng(0), anew=True)
    frames = list(Engine(atoms, potential, physics).run(10, every=2))
    assert len(frames) == 5
    assert np.ptp([frame.conserved for frame in frames]) < 1e-3
    assert np.abs(frames[-1].positions - atoms.positions).max() > 1e-3


def check_second_derivatives(potential):
    """Of forces by weights, beside differences, where a step of a simulation went before."""
    system = from_atoms([alloy()], potential.type_map)
    given = system.positions, system.types, system.cell
    potential.evaluate(system)
    weights = [weight for weight in potential.parameters() if weight.requires_grad]

    def loss():
        return potential(*given, forces=True, create_graph=True)["forces"].square().sum()

    grads = torch.autograd.grad(loss(), weights, materialize_grads=True, allow_unused=True)
    random = torch.Generator().manual_seed(0)
    along = [torch.randn(weight.shape, generator=random, dtype=weight.dtype) for weight in weights]

    def moved(step):
        with torch.no_grad():
            for weight, direction in zip(weights, along, strict=True):
                weight.add_(direction, alpha=step)
        return float(loss().detach())

    step = 1e-5
    slope = (moved(step) - moved(-2 * step)) / (2 * step)
    assert slope == pytest.approx(
        float(sum((a * b).sum() for a, b in zip(grads, along, strict=True))), rel=1e-5
    )


def check_copies(potential):
    """A copy of a model that has answered has weights of its own, of which no answer of another keeps anything."""
    before = potential.compute(alloy())
    changed, single = copy.deepcopy(potential), copy.deepcopy(potential).float()
    for _ in range(2):  # once more after answers with the changed weights
        for weight in changed.parameters():
            weight.data += 0.01
        found, again = changed.compute(alloy()), model_of_tree(changed.model.to_tree(), torch.float64)
        wanted = mdops.Potential(again).eval().compute(alloy())
        assert np.abs(found["forces"] - before["forces"]).max() > 1e-4 * np.abs(before["forces"]).max()
        np.testing.assert_allclose(found["forces"], wanted["forces"], rtol=1e-9, atol=1e-12)
    assert (potential.compute(alloy())["forces"] == before["forces"]).all()
    np.testing.assert_allclose(single.compute(alloy())["forces"], before["forces"], rtol=0.01, atol=1e-3)


def on_gpu(system):
    parts = {f.name: getattr(system, f.name) for f in dataclasses.fields(system)}
    return type(system)(**{k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in parts.items()})


def check_gpu(case):
    """A GPU's answers are the CPU's."""
    for dtype, limit in (("float64", 1e-11), ("float32", 1e-4)):
        cpu_model, gpu_model = load_case(case, dtype), load_case(case, dtype, "cuda")
        for one in references(KINDS / case):
            extra = [None if p is None else p.cuda() for p in (one.fparam, one.aparam)]
            system = on_gpu(one.system)
            found = gpu_model.evaluate(system, None, *extra, atom_virial=True)
            wanted = cpu_model.evaluate(one.system, None, one.fparam, one.aparam, atom_virial=True)
            for name, value in wanted.items():
                assert relative_error(found[name].cpu(), value) < limit, f"{one.name}: {name}"


def refuses(case, edit, message):
    """A model whose descriptor was edited is refused by name."""
    tree = read_model(KINDS / case / "model.dp").model
    edit(tree["descriptor"])
    with warnings.catch_warnings(), pytest.raises(mdops.errors.UnsupportedModelError, match=message):
        model_of_tree(tree)


def with_value(case, place, value):
    """The file's tree of a case, with a value at a place."""
    tree = copy.deepcopy(read_model(KINDS / case / "model.dp").model)
    node = tree
    for name in place[:-1]:
        node = node[name]
    node[place[-1]] = value
    return tree


class DescriptorTests:
    """What the file of every kind tests; `conftest` gives each `case`.

    Attributes:
        CASES: of DeePMD-kit's answers. DIFFERENTIATED: those whose derivatives are compared with differences.
        INPUT: a section `descriptor` of a training. STEPS: of it. TRAINED: what it ends with, the kind, how far it
            reaches, and the places of each part.
    """

    CASES: tuple[str, ...]
    DIFFERENTIATED: tuple[str, ...]
    INPUT: dict
    STEPS = 20
    TRAINED: tuple

    @classmethod
    def cases_of(cls, test):
        return cls.DIFFERENTIATED if test == "test_derivatives" else cls.CASES

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_deepmd_kits_answers(self, case, dtype):
        check_reference(case, dtype)

    def test_a_saved_model_is_the_tree_that_was_read(self, case, tmp_path):
        check_round_trip(case, tmp_path)

    def test_derivatives(self, case):
        check_gradients(case)

    def test_atoms_without_neighbors(self, case):
        check_no_neighbors(case)

    def test_training_restart_and_saved_model(self, tmp_path):
        self.check_trained(check_training(self.INPUT, tmp_path, self.STEPS))

    def test_ase_and_engine(self):
        check_dynamics(new_potential(self.INPUT))

    def test_copies(self):
        check_copies(new_potential(self.INPUT).eval())

    @pytest.mark.gpu
    def test_gpu(self, case):
        check_gpu(case)

    def check_trained(self, potential):
        """Of the potential that a training ends with."""
        found = potential.kind, potential.reach, *(spec.sel for spec in potential.model.neighbors)
        assert found == (f"a standard model of {self.TRAINED[0]}", *self.TRAINED[1:])
