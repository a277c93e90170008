"""Charges beyond the cutoff, as in DPLR: Gaussian charges at atoms and at the places that a dipole model gives."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, all_changes

from mdops.errors import InputError, UnsupportedModelError
from mdops.potential import Potential
from mdops.system import System, element_types, from_atoms, voigt

COULOMB = 14.39964535475696995031  # eV A, of two elementary charges at 1 A; DeePMD-kit's number
_ORDER = 8  # of the B-splines of a mesh
_MESH_FROM = 1000  # charges; with more, a mesh takes less time than the exact sum
_PHASES = 1 << 22  # the most products of charges and wave vectors in memory at a time


def reciprocal_energy(
    positions: torch.Tensor, charges: torch.Tensor, cell: torch.Tensor, spacing: float, beta: float
) -> torch.Tensor:
    """The energy of Gaussian charges in a periodic cell, eV: the exact sum over wave vectors, differentiable.

    E = COULOMB / (2 pi V) sum_{m != 0} exp(-pi^2 m^2 / beta^2) / m^2 |sum_i q_i exp(2 pi i m . x_i)|^2, over
    m = H^-1 n with every n_a from -K_a/2 to K_a/2: DeePMD-kit's sum. It includes each Gaussian's energy with itself.

    Args:
        positions: (N, 3), A. charges: (N,), e. cell: (3, 3), A, rows are lattice vectors.
        spacing: A, of a grid with the same wave vectors: K_a is |h_a| / spacing, rounded up to an
            even number.
        beta: 1/A, the inverse width.
    """
    inverse = torch.linalg.inv(cell)
    sizes = [math.ceil(float(length) / spacing) for length in cell.detach().norm(dim=1)]
    axes = [torch.arange(-((k + k % 2) // 2), (k + k % 2) // 2 + 1, device=cell.device) for k in sizes]
    numbers = torch.cartesian_prod(*axes)
    # The terms of n and -n are equal.
    first = numbers[:, 0] * 4 * len(axes[1]) * len(axes[2]) + numbers[:, 1] * 2 * len(axes[2]) + numbers[:, 2]
    numbers = numbers[first > 0].to(cell)
    fractions, energy = positions @ inverse, positions.new_zeros(())
    for some in numbers.split(max(1, _PHASES // max(len(positions), 1))):
        squares = (some @ inverse.T).square().sum(1)
        phases = 2 * math.pi * (some @ fractions.T)
        factor = (charges * torch.cos(phases)).sum(1).square() + (charges * torch.sin(phases)).sum(1).square()
        energy = energy + 2 * (torch.exp(-((math.pi / beta) ** 2) * squares) / squares * factor).sum()
    return energy * COULOMB / (2 * math.pi * torch.linalg.det(cell).abs())


def mesh_energy(
    positions: torch.Tensor, charges: torch.Tensor, cell: torch.Tensor, spacing: float, beta: float
) -> torch.Tensor:
    """The same with a mesh (smooth particle-mesh Ewald, B-splines of order 8): its time grows as N, not N^2. It has the
    arguments and wave vectors of `reciprocal_energy`; the mesh has twice as many points along each axis."""
    inverse = torch.linalg.inv(cell)
    sizes = [2 * (math.ceil(float(length) / spacing / 2)) for length in cell.detach().norm(dim=1)]
    points = [max(2 * size, 2 * _ORDER) for size in sizes]
    fractions = (positions @ inverse) % 1.0
    places, weights, axes, factors = [], [], [], []
    for axis, (size, count) in enumerate(zip(sizes, points, strict=True)):
        scaled = fractions[:, axis] * count
        lowest = scaled.detach().floor()
        weights.append(_splines(scaled - lowest))
        below = torch.arange(_ORDER, device=cell.device)
        places.append((lowest.long()[:, None] - below) % count)
        n = torch.arange(-(size // 2), size // 2 + 1, device=cell.device)
        axes.append(n)
        knots = _splines(torch.zeros(1, dtype=cell.dtype, device=cell.device))[0, 1:]
        turns = 2 * math.pi * n[:, None].to(cell) * torch.arange(_ORDER - 1, device=cell.device) / count
        real, imaginary = (torch.cos(turns) * knots).sum(1), (torch.sin(turns) * knots).sum(1)
        factors.append(1 / (real.square() + imaginary.square()))
    spread = charges[:, None, None, None] * torch.einsum("ia,ib,ic->iabc", *weights)
    index = (places[0][:, :, None, None] * points[1] + places[1][:, None, :, None]) * points[2]
    index = index + places[2][:, None, None, :]
    mesh = torch.zeros(math.prod(points), dtype=cell.dtype, device=cell.device)
    mesh = mesh.index_add(0, index.reshape(-1), spread.reshape(-1)).view(*points)
    transformed = torch.fft.fftn(mesh)
    for axis, (n, count) in enumerate(zip(axes, points, strict=True)):
        transformed = transformed.index_select(axis, n % count)
    squares = (torch.cartesian_prod(*axes).to(cell) @ inverse.T).square().sum(1)
    some = squares > 0
    safe = torch.where(some, squares, 1.0)
    kernel = torch.where(some, torch.exp(-((math.pi / beta) ** 2) * safe) / safe, 0.0)
    power = transformed.real.square() + transformed.imag.square()
    power = power * torch.einsum("a,b,c->abc", *factors)
    return (kernel * power.reshape(-1)).sum() * COULOMB / (2 * math.pi * torch.linalg.det(cell).abs())


def _splines(part: torch.Tensor) -> torch.Tensor:
    """(N, order): the B-spline at part + j, j = 0, 1, ..., of the parts (N,) of a mesh's spacing."""
    found = [part, 1 - part]
    for order in range(3, _ORDER + 1):
        before = [torch.zeros_like(part), *found, torch.zeros_like(part)]
        found = [
            ((part + j) * before[j + 1] + (order - part - j) * before[j]) / (order - 1) for j in range(order)
        ]
    return torch.stack(found, 1)


class DipoleCharge:
    """DeePMD-kit's modifier "dipole_charge": a charge at each atom, by its type, and one more at position + dipole (the
    Wannier centroid), where a dipole model gives the dipole. The energy is the `reciprocal_energy` of all charges.
    Forces and virials include the dipole model's derivatives.

    Attributes:
        model: the dipole model.
        model_charges: for each type the charge of its centroid, e; 0 if it has none.
        charges: for each type the charge at the atom, e.
        spacing, beta: see `reciprocal_energy`.
        mesh: see `__init__`.
    """

    def __init__(
        self,
        model: Potential,
        model_charge_map: Sequence[float],
        sys_charge_map: Sequence[float],
        ewald_h: float = 1.0,
        ewald_beta: float = 0.4,
        *,
        mesh: bool | None = None,
    ) -> None:
        """Arguments are the keys of DeePMD-kit's section `modifier`.

        Args:
            model: a model of atomic dipoles, in A (times the charge of the dipole).
            model_charge_map: the charges of the centroids, for the types that have one (those that the model does not
                exclude).
            sys_charge_map: the charge of each of the model's types.
            mesh: use `mesh_energy`; by default from 1,000 charges on.

        Raises:
            UnsupportedModelError: the model's output is not dipoles. InputError: the charges do not fit its types, or a
                length is not positive.
        """
        if [output.name for output in model.model.outputs] != ["dipole"]:
            raise UnsupportedModelError(
                f"a modifier dipole_charge needs a model of dipoles, and this is {model.kind}"
            )
        selected = torch.nonzero(model.model.has_energy)[:, 0].tolist()
        if len(model_charge_map) != len(selected):
            raise InputError(
                f"model_charge_map has {len(model_charge_map)} charges, and the model has dipoles of "
                f"{', '.join(model.type_map[t] for t in selected)}"
            )
        if len(sys_charge_map) != len(model.type_map):
            raise InputError(
                f"sys_charge_map has {len(sys_charge_map)} charges, and the types are {', '.join(model.type_map)}"
            )
        if not (ewald_h > 0 and ewald_beta > 0):
            raise InputError(
                f"ewald_h and ewald_beta are {ewald_h} and {ewald_beta}, expected positive numbers"
            )
        self.model, self.spacing, self.beta = model, float(ewald_h), float(ewald_beta)
        self.mesh = mesh
        self.charges = torch.tensor(list(sys_charge_map), dtype=torch.float64, device=model.device)
        self.model_charges = torch.zeros_like(self.charges)
        self.model_charges[selected] = torch.tensor(
            list(model_charge_map), dtype=torch.float64, device=model.device
        )

    def compute(self, atoms: Atoms | Sequence[Atoms]) -> dict[str, np.ndarray]:
        """energy (S,), atom_energy (N,), forces (N, 3) and virial (S, 3, 3) of ASE Atoms, or of a list of them; eV and
        A. An atom's energy is that of its charge and its centroid; the atoms' energies sum to the energy.

        Raises InputError for atoms that are not periodic in three directions, and as `Potential.compute`."""
        frames = [atoms] if isinstance(atoms, Atoms) else list(atoms)
        found = self.answers(from_atoms(frames, self.model.type_map, self.model.device), self.model.type_map)
        return {name: value.cpu().numpy() for name, value in found.items()}

    def answers(self, system: System, type_map: Sequence[str]) -> dict[str, torch.Tensor]:
        """The same for a system whose types are those of a `type_map`, on its device.

        Raises InputError as `compute`, and for an element that the dipole model does not know."""
        device = self.model.device
        if not bool(system.pbc.all()):
            raise InputError(
                f"charges beyond the cutoff are summed over periodic images, but pbc is {system.pbc.tolist()}"
            )
        kinds = system.types.to(device).long()
        if list(type_map) != list(self.model.type_map):
            present = sorted(set(kinds[kinds >= 0].tolist()))
            known = torch.full((len(type_map) + 1,), -1, device=device)  # the last place is for type -1
            for kind, own in zip(
                present, element_types([type_map[t] for t in present], self.model.type_map), strict=True
            ):
                known[kind] = int(own)
            kinds = known[kinds]
        positions, cells, batch = (x.to(device) for x in (system.positions, system.cell, system.batch))
        energies, of_atoms = cells.new_zeros(len(cells)), positions.new_zeros(len(positions))
        forces, virials = torch.zeros_like(positions), torch.zeros_like(cells)
        for s, cell in enumerate(cells):
            rows = torch.nonzero(batch == s)[:, 0]
            energies[s], of_atoms[rows], forces[rows], virials[s] = self._of_one(
                positions[rows], kinds[rows], cell
            )
        found = {"energy": energies, "atom_energy": of_atoms, "forces": forces, "virial": virials}
        return {name: value.to(system.positions.device) for name, value in found.items()}

    def _of_one(
        self, positions: torch.Tensor, kinds: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """energy, atom energies (n,), forces (n, 3) and virial (3, 3) of one system; kinds (n,) are the dipole
        model's types."""
        with torch.enable_grad():
            strain = torch.zeros(3, 3, dtype=torch.float64, device=cell.device, requires_grad=True)
            place = positions.detach().requires_grad_()
            moved, box = place + place @ strain, cell.detach() + cell.detach() @ strain
            centers = moved + self.model(moved, kinds.int(), box)["atom_dipole"]
            known, real = kinds.clamp(min=0), kinds >= 0
            charges = torch.cat([self.charges[known] * real, self.model_charges[known] * real])
            charges.requires_grad_()
            is_large = len(charges) >= _MESH_FROM if self.mesh is None else self.mesh
            total = mesh_energy if is_large else reciprocal_energy
            energy = total(torch.cat([moved, centers]), charges, box, self.spacing, self.beta)
            slopes = torch.autograd.grad(energy, (place, strain, charges))
        # The energy is quadratic in the charges. Half of a charge times its derivative is that charge's part.
        own = (0.5 * charges.detach() * slopes[2]).view(2, -1).sum(0)
        return energy.detach(), own, -slopes[0], -slopes[1]

    def without(self, frames: Sequence[Atoms]) -> list[Atoms]:
        """Frames whose energies, forces and stresses (those that they have) lack the charges' part: the labels for
        training a model of the rest."""
        return [self._shifted(atoms, -1) for atoms in frames]

    def _shifted(self, atoms: Atoms, sign: float) -> Atoms:
        from ase.calculators.singlepoint import SinglePointCalculator

        known = dict(getattr(atoms.calc, "results", {}))
        if "energy" not in known:
            raise InputError(
                "a frame has no energy: labels must be in the frame's calculator, as ASE reads them"
            )
        found, volume, result = self.compute(atoms), atoms.get_volume(), atoms.copy()
        shifted = {"energy": float(known["energy"] + sign * found["energy"][0])}
        if "forces" in known:
            shifted["forces"] = known["forces"] + sign * found["forces"]
        if "stress" in known:
            full = known["stress"]
            own = -found["virial"][0] / volume
            shifted["stress"] = full + sign * (voigt(own) if np.shape(full) == (6,) else own)
        result.calc = SinglePointCalculator(result, **shifted)
        return result


class LongRange(Calculator):
    """An ASE calculator that adds the energy, forces and stress of the charges to those of another calculator.

    Attributes:
        short: the other calculator, such as `MDOps` with a model trained on `DipoleCharge.without`.
        charges: the charges.
    """

    implemented_properties: list[str] = ["energy", "free_energy", "forces", "stress"]  # noqa: RUF012

    def __init__(self, short: Calculator, charges: DipoleCharge) -> None:
        super().__init__()
        self.short, self.charges = short, charges

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Fills `results`; called by ASE."""
        super().calculate(atoms, properties, system_changes)
        here: Any = self.atoms
        found = self.charges.compute(here)
        energy = float(self.short.get_potential_energy(here)) + float(found["energy"][0])
        stress = self.short.get_stress(here) + voigt(-found["virial"][0] / here.get_volume())
        self.results = {"energy": energy, "free_energy": energy, "stress": stress}
        self.results["forces"] = self.short.get_forces(here) + found["forces"]
