"""What must hold for large systems: float32 keeps its digits."""

import torch
from reference_cases import DATA, model_path, references, relative_error

from mdops import load
from mdops.system import System


def repeated(system: System, times: int) -> System:
    """The first frame of a batch, `times` times along each lattice vector."""
    atoms = int((system.batch == 0).sum())
    steps = torch.stack(torch.meshgrid(*[torch.arange(times)] * 3, indexing="ij"), -1).reshape(-1, 1, 3)
    positions = (system.positions[:atoms] + steps.double() @ system.cell[0]).reshape(-1, 3)
    return System(
        positions,
        system.types[:atoms].repeat(times**3),
        times * system.cell[:1],
        system.pbc[:1],
        torch.zeros(len(positions), dtype=torch.int32),
    )


def test_virial_and_forces_of_a_hundred_thousand_atoms_in_float32():
    (reference, *_) = references(DATA / "se_a_alloy")
    large = repeated(reference.system, 15)
    copies, atoms = 15**3, large.atoms // 15**3
    assert large.atoms > 100_000
    result = load(model_path("se_a_alloy"), dtype=torch.float32).evaluate(large)
    assert relative_error(result["virial"][0] / copies, reference.answers["virial"][0]) < 1e-5
    assert relative_error(result["energy"] / copies, reference.answers["energy"][:1]) < 1e-7
    forces = result["forces"].reshape(copies, atoms, 3)
    assert relative_error(forces, reference.answers["forces"][:atoms].expand(copies, -1, -1)) < 1e-4
