"""DeePMD-kit's models and answers: those of tests/data/reference, and of ../shared when it is there."""

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mdops import Potential, load
from mdops.models import model_of_tree
from mdops.system import System

DATA = Path(__file__).parents[1] / "data" / "reference"
SHARED = Path(__file__).parents[3] / "shared" / "reference"
ANSWERS = ("energy", "forces", "virial", "atom_energy", "atom_virial")

CASES = sorted(path.name for path in DATA.iterdir())
# More neighbours than sel: DeePMD-kit's answers are those of the truncated list.
OVERFLOWING = ("overflow", "overflow_two_side")
# Weights rounded to float32 and computed with in float32: DeePMD-kit's own answers carry that rounding.
ROUNDED = ("float32", "float32_descriptor")
SHARED_CASES = ("formats", "se_a_alloy", "se_a_oneside", "water_se_a")


@dataclass
class Reference:
    """A batch of frames, as the model is asked, and what it should answer."""

    name: str
    system: System
    fparam: torch.Tensor | None
    aparam: torch.Tensor | None
    answers: dict[str, torch.Tensor]


def model_path(case: str) -> Path:
    return DATA / case / "model.dp"


def overflow_of(case: str) -> str:
    return "truncate" if case in OVERFLOWING else "error"


@functools.cache
def loaded(case: str, dtype: str = "float64", *, spline: bool = True) -> Potential:
    """On the CPU, for tests that change nothing of it; what loading warns of has tests of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(model_path(case), dtype=dtype, spline=spline, overflow=overflow_of(case))


def references(folder: Path) -> list[Reference]:
    """Every system of a case, all frames of it as one batch."""
    with np.load(folder / "systems.npz") as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    names = dict.fromkeys(key.split("/")[0] for key in arrays)
    return [
        _reference(name, {k.split("/")[1]: v for k, v in arrays.items() if k.split("/")[0] == name})
        for name in names
    ]


def _reference(name: str, arrays: dict[str, torch.Tensor]) -> Reference:
    frames, atoms, _ = arrays["positions"].shape
    system = System(
        arrays["positions"].reshape(-1, 3),
        arrays["types"].int().repeat(frames),
        arrays.get("cell", torch.zeros(frames, 3, 3, dtype=torch.float64)),
        torch.full((frames, 3), "cell" in arrays),
        torch.arange(frames, dtype=torch.int32).repeat_interleave(atoms),
    )
    aparam = arrays["aparam"].flatten(0, 1) if "aparam" in arrays else None
    answers = {
        "energy": arrays["energy"].reshape(frames),
        "forces": arrays["forces"].reshape(-1, 3),
        "virial": arrays["virial"],
        "atom_energy": arrays["atom_energy"].reshape(-1),
    }
    if "atom_virial" in arrays:
        answers["atom_virial"] = arrays["atom_virial"].reshape(-1, 3, 3)
    return Reference(name, system, arrays.get("fparam"), aparam, answers)


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest deviation over the largest reference value."""
    scale = reference.abs().max().clamp(min=1e-3)
    return (value - reference).abs().max().item() / scale.item()


def build(tree, dtype=torch.float64, overflow="error"):
    """The potential of a serialised tree."""
    return Potential(model_of_tree(tree, dtype), overflow=overflow)


def virials_of_energies(potential, atoms, spins=None):
    """Atomic virials of an open system by their definition, -sum_i dE_i/dx_j (x) (x_j - x_i): one gradient for each
    atom's energy."""
    x = torch.tensor(atoms.positions, requires_grad=True)
    types = torch.tensor([potential.type_map.index(name) for name in atoms.symbols])
    found = torch.zeros(len(x), 3, 3, dtype=torch.float64)
    for i, energy in enumerate(potential(x, types, spins=spins)["atom_energy"]):
        (g,) = torch.autograd.grad(energy, x, retain_graph=True)
        found -= g[:, :, None] * (x - x[i]).detach()[:, None, :]
    return found


@torch.no_grad()
def composed(potential, system, fparam=None, aparam=None):
    """Every answer by the evaluator that differentiates: splines or nets, and autograd."""
    evaluator, near = potential.evaluator("differentiate"), potential.neighbor_list(system)
    answers, _ = evaluator(system, near, fparam, aparam, atom_virial=True)
    return {name: value.detach() for name, value in potential.with_sums(answers, system).items()}


def assert_close(found, wanted, tolerance, names=("energy", "atom_energy", "forces", "virial")):
    for name in names:
        assert relative_error(found[name].cpu(), wanted[name].cpu()) < tolerance, name


def on_device(system: System, device: torch.device | str) -> System:
    moved = (getattr(system, name).to(device) for name in ("positions", "types", "cell", "pbc", "batch"))
    return System(*moved)


def assert_deepmd_kits_answers(potential, folder, tolerance, answer=None):
    """All that DeePMD-kit said of every system of a case, with atomic virials and without; `answer` gives what is asked
    of system, fparam and aparam in the place of `evaluate`."""
    for one in references(folder):
        system = on_device(one.system, potential.device)
        given = [None if p is None else p.to(potential.device) for p in (one.fparam, one.aparam)]
        if answer is not None:
            every = [answer(system, *given)]
        else:
            asked = (False, True) if potential.reach == 1 else (False,)
            every = [potential.evaluate(system, None, *given, atom_virial=more) for more in asked]
            assert ["atom_virial" in found for found in every] == list(asked)
        for found in every:
            names = found.keys() & one.answers.keys()
            assert {"energy", "forces", "virial"} <= names, one.name
            assert_close(found, one.answers, tolerance, names)
