"""examples/message_passing.py and equivariant.py: kinds with message passing, registered from outside, work like any
other."""

import importlib

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk

import mdops
from mdops.calculator import MDOps
from mdops.cli import main as command
from mdops.errors import UnsupportedModelError
from mdops.md import Engine, EnsembleSettings
from mdops.models import DescriptorFitting, GraphDescriptor
from mdops.potential import Potential
from mdops.system import from_atoms
from mdops.train import Trainer, parse_config

TWO_LAYERS = 2


@pytest.fixture(scope="module", params=["message_passing", "equivariant"])
def example(request, examples):
    return importlib.import_module(request.param)


@pytest.fixture(scope="module")
def trained(example, tmp_path_factory):
    """The model file of a short training, and its errors on the way."""
    folder, reports = tmp_path_factory.mktemp("trained"), []
    steps = 40 if example.__name__ == "message_passing" else 25
    trainer = Trainer(parse_config(example.training_input(steps)), folder)
    trainer.run(reports.append)
    return folder / "model.safetensors", reports


@pytest.fixture(scope="module")
def potential(trained):
    return mdops.load(trained[0], dtype="float64")


def alloy(repeat=(1, 1, 1), seed=3):
    """A rattled Cu-Al cell that is shorter than a cutoff, so that atoms are neighbours of their own images."""
    atoms = bulk("Cu", cubic=True)
    atoms.symbols[:2] = "Al"
    atoms.rattle(0.1, seed=seed)
    return atoms * repeat


def energy(potential, atoms):
    return potential.compute(atoms)["energy"][0]


def test_it_learns_and_a_saved_model_is_the_trained_one(example, trained, potential, tmp_path):
    _, reports = trained
    assert reports[-1].training["forces"] < 0.6 * reports[0].training["forces"]
    assert type(potential.model.descriptor).__module__ == example.__name__
    assert potential.reach == TWO_LAYERS
    for suffix in (".json", ".yaml", ".safetensors"):
        potential.save(tmp_path / f"again{suffix}")
        again = mdops.load(tmp_path / f"again{suffix}", dtype="float64")
        for name, value in potential.compute(alloy()).items():
            np.testing.assert_array_equal(again.compute(alloy())[name], value)


def test_spare_edges_change_nothing(potential):
    """As in CUDA graphs and exported programs, whose graphs have room for more edges than there are."""
    system = from_atoms([alloy(), alloy(seed=4)], potential.type_map)
    pairs = potential.neighbor_list(system)
    roomy = pairs._replace(graph_room=(pairs.neighbors.numel() + 40, 1, 1))
    expected = potential.evaluate(system, pairs)
    for name, value in potential.evaluate(system, roomy).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12)


def test_a_kind_for_cuda_graphs_tells_how_large_its_own_are():
    """Without, there would be room for no edge at all."""
    with pytest.raises(TypeError, match="Silent has `captures`, and so needs `graph_sizes`"):
        type("Silent", (GraphDescriptor,), {"captures": True})
    type("Telling", (GraphDescriptor,), {"captures": True, "graph_sizes": lambda self, within: None})


def test_an_atom_feels_one_that_is_two_cutoffs_away(potential):
    """In a chain whose ends are no neighbours, and beyond the reach of the layers nothing."""
    cutoff = potential.model.descriptor.options.rcut

    def force_on_first(last):
        atoms = Atoms("Cu3", [[0, 0, 0], [0, 0, 0.8 * cutoff], [0, 0, last]])
        return potential.compute(atoms)["forces"][0, 2]

    assert abs(force_on_first(1.5 * cutoff) - force_on_first(1.6 * cutoff)) > 1e-8
    assert force_on_first(1.9 * cutoff) == force_on_first(2.1 * cutoff)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_forces_and_virial_are_slopes(trained, device):
    potential = mdops.load(trained[0], dtype="float64", device=device)
    atoms, step, random = alloy(), 1e-5, np.random.default_rng(0)
    answers = potential.compute(atoms)
    direction = random.standard_normal(atoms.positions.shape)
    strain = random.standard_normal((3, 3))
    energies = {"moved": [], "strained": []}
    for sign in (1, -1):
        moved = atoms.copy()
        moved.positions += sign * step * direction
        energies["moved"].append(energy(potential, moved))
        strained = atoms.copy()
        strained.set_cell(atoms.cell.array @ (np.eye(3) + sign * step * strain), scale_atoms=True)
        energies["strained"].append(energy(potential, strained))
    slopes = {name: (a - b) / (2 * step) for name, (a, b) in energies.items()}
    assert slopes["moved"] == pytest.approx(-(answers["forces"] * direction).sum(), rel=1e-6)
    assert slopes["strained"] == pytest.approx(-(answers["virial"][0] * strain).sum(), rel=1e-6)


def test_images_have_the_numbers_of_their_atoms(potential):
    """A cell, and eight of it in one; frames alone, and together."""
    one, eight = potential.compute(alloy()), potential.compute(alloy((2, 2, 2)))
    assert eight["energy"][0] == pytest.approx(8 * one["energy"][0], rel=1e-12)
    np.testing.assert_allclose(eight["forces"], np.tile(one["forces"], (8, 1)), atol=1e-11)
    np.testing.assert_allclose(eight["virial"], 8 * one["virial"], atol=1e-10)
    both = potential.compute([alloy(seed=5), alloy()])
    assert both["energy"][1] == pytest.approx(one["energy"][0], rel=1e-13)
    np.testing.assert_allclose(both["forces"][4:], one["forces"], atol=1e-12)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_it_runs_in_ase_and_in_the_engine(trained, device, dtype):
    potential = mdops.load(trained[0], dtype=dtype, device=device)
    atoms = alloy((2, 2, 2))
    atoms.calc = MDOps(potential)
    started = atoms.get_potential_energy()
    frames = list(Engine(atoms, potential, EnsembleSettings("nve", 300, timestep=1.0)).run(20, every=1))
    total = np.array([frame.energy + frame.kinetic for frame in frames])
    assert np.ptp(total) < 5e-3 and abs(frames[-1].energy - started) > 1e-2
    atoms.positions = frames[-1].positions
    assert atoms.get_potential_energy() == pytest.approx(frames[-1].energy, abs=1e-4)


def test_commands_have_the_model(example, potential, trained, tmp_path, capsys):
    kinds, model = ["--kinds", example.__file__], str(trained[0])
    assert command(["info", model, *kinds]) == 0
    assert potential.model.descriptor.kind in capsys.readouterr().out
    ase.io.write(tmp_path / "alloy.xyz", alloy((2, 2, 2)))
    files = ["--trajectory", str(tmp_path / "run.xyz"), "--log", str(tmp_path / "run.csv")]
    asked = ["-m", model, "-T", "300", "--steps", "10", "--interval", "5", *files]
    assert command(["md", str(tmp_path / "alloy.xyz"), *asked, *kinds]) == 0
    frames = ase.io.read(tmp_path / "run.xyz", ":")
    assert len(frames) == 3 and not np.allclose(frames[0].positions, frames[-1].positions)


def test_beside_a_descriptor_of_sums(potential):
    """In a hybrid, whose sums go by splines and its messages by autograd: with the parts' own gradients."""
    tree = potential.model.to_tree()
    sums = mdops.models.registry.find("descriptor", "se_e2_a")
    options = sums.Options(rcut=4.0, rcut_smth=1.0, sel=[60, 60], neuron=[4, 8], axis_neuron=2)
    part = sums.random(options, ["Cu", "Al"], [1], torch.float64)
    hybrid = mdops.models.registry.find("descriptor", "hybrid").from_tree(
        {"list": [part.to_tree(), tree["descriptor"]]}, ["Cu", "Al"], torch.float64
    )
    fitting = mdops.models.registry.find("fitting", "ener")
    net = fitting.random(fitting.Options(neuron=[8]), ["Cu", "Al"], hybrid.width, False, 1, torch.float64)
    whole = {**tree, "descriptor": hybrid.to_tree(), "fitting": net.to_tree()}
    made = Potential(DescriptorFitting.from_tree(whole, torch.float64))
    exact = made.compute(alloy((2, 2, 1)))
    made.use_spline()
    assert made.explain().startswith("fused") and made.reach == TWO_LAYERS
    for name, value in made.compute(alloy((2, 2, 1))).items():
        np.testing.assert_allclose(value, exact[name], rtol=1e-6, atol=1e-6)


def test_an_exported_program_answers_as_the_model(potential):
    atoms = alloy()
    system = from_atoms([atoms], potential.type_map, potential.device)
    near = potential.neighbor_list(system)
    given = {name: getattr(system, name) for name in ("positions", "types", "cell", "batch")}
    given |= {name: getattr(near, name) for name in ("neighbors", "images", "counts")}
    found = potential.export().module()(**given)
    for name, wanted in potential.evaluate(system, near).items():
        torch.testing.assert_close(found[name], wanted, rtol=0, atol=1e-12)


def test_an_engines_frames_have_atomic_virials(potential):
    engine = Engine(alloy(), potential, EnsembleSettings("nve", 300), atom_virial=True)
    frame = list(engine.run(10, every=5))[-1]
    wanted = potential.compute(frame.atoms(alloy()), atom_virial=True)["atom_virial"]
    np.testing.assert_allclose(frame.atom_virial, wanted, atol=1e-9)
    np.testing.assert_allclose(wanted.sum(0), frame.virial.T, atol=1e-9)


def test_what_needs_the_c_cores_kernels_is_refused(potential, tmp_path):
    with pytest.raises(UnsupportedModelError, match="C core does not support"):
        potential.save(tmp_path / "core.safetensors", core=["float32"])
