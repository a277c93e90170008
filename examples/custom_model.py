"""A new descriptor as a registered kind: it loads, saves, trains and simulates like any other.

python examples/custom_model.py [--steps 400] [--out FOLDER]

The symmetry functions of Behler and Parrinello (J. Behler, J. Chem. Phys. 134, 074106, 2011): for each type of
neighbours, radial functions, which are sums of Gaussians of the distance; for each pair of types, angular functions,
which are sums over pairs of neighbours of powers of 1 +- cos(angle). Unlike mdops' own descriptors, it has no embedding
nets, no environment matrix and no limit on the number of neighbours; the widths and centres of its Gaussians are
trained. The fitting net ("ener") and everything else exist. Commands know the kind if they get this file's name:

mdops train input.json --kinds examples/custom_model.py   # "descriptor": {"type": "symmetry_functions", "rcut": 5.0}
mdops md structure.xyz --model model.safetensors --time 1 --kinds examples/custom_model.py
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from ase import Atoms

import mdops
from mdops.calculator import MDOps
from mdops.md import Engine, EnsembleSettings
from mdops.models import Descriptor, Features, Neighborhood, NeighborSpec, register
from mdops.options import PRECISIONS, Options, key
from mdops.train import Dataset, Trainer, parse_config

DATA = Path(__file__).parents[1] / "tests/data/training"


@dataclass(kw_only=True)
class SymmetryOptions(Options):
    """Keys of training inputs and of model files, written once."""

    KIND = "symmetry_functions"
    NAMES = ("symmetry_functions", "behler_parrinello")

    rcut: float = key(5.0, "the cutoff", unit="A", above=0)
    radial: int = key(8, "radial functions of each type of neighbours", low=2)
    zeta: list[int] = key([1, 2, 4], "powers in the angular functions, two of each", low=1)
    precision: str = key(
        "default", "precision in which the weights are saved; default float64", choices=PRECISIONS
    )
    trainable: bool = key(True, "whether widths and centres are trained", of="training")
    seed: int | None = key(
        None, "of nothing: the first widths and centres are a grid", where="input", of="training"
    )

    @property
    def cutoff(self) -> float:
        return self.rcut


@register
class SymmetryFunctions(Descriptor):
    """For each type t, and for each pair of types t <= u, with f(r) = (1 + cos(pi r / rcut)) / 2:

    G_tb = 1/4 sum_{j in t} exp(-(r_j - c_b)^2 / w_b^2) f(r_j),
    G_tuz+- = 1/4 2^-z sum_{j in t, k in u, j != k} (1 +- cos jik)^z h_j h_k, with h_j = exp(-r_j^2 / w^2) f(r_j).
    """

    Options = SymmetryOptions

    def __init__(self, options: SymmetryOptions, type_map: list[str]) -> None:
        """Makes c_b (B,), and w_b and w (B + 1,), A, on an initial grid."""
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        spacing = options.rcut / (options.radial + 1)
        widths = [spacing] * options.radial + [options.rcut / 2]
        self.centers = torch.nn.Parameter(spacing * torch.arange(1, options.radial + 1, dtype=torch.float64))
        self.widths = torch.nn.Parameter(torch.tensor(widths, dtype=torch.float64))

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return (NeighborSpec(self.options.rcut, sel=None),)  # any number of neighbours

    @property
    def width(self) -> int:
        n = len(self.type_map)
        return n * self.options.radial + n * (n + 1) // 2 * 2 * len(self.options.zeta)

    def forward(self, near: Neighborhood) -> Features:
        # Slots without a neighbour have the type ntypes. It gets its own column, which is left out.
        of_type = F.one_hot(near.neighbor_types, near.ntypes + 1)[..., :-1].to(near.displacements.dtype)
        is_there = (near.neighbor_types < near.ntypes)[..., None]
        d = torch.where(
            is_there, near.displacements, self.options.rcut
        )  # not the square root of zero, whose slope is infinite
        r = d.square().sum(-1, keepdim=True).sqrt()
        fade = 0.5 * (1 + torch.cos(math.pi / self.options.rcut * r))
        gaussians = torch.exp(-(((r - self.centers) / self.widths[:-1]) ** 2)) * fade
        radial = torch.einsum("njt,njb->ntb", of_type, gaussians)

        weights = of_type * torch.exp(-((r / self.widths[-1]) ** 2)) * fade
        cosines = (d / r) @ (d / r).mT
        own = torch.eye(cosines.shape[-1], dtype=torch.bool, device=d.device)
        t, u = torch.triu_indices(near.ntypes, near.ntypes, device=d.device)
        angular = []
        for zeta in self.options.zeta:
            for sign in (1, -1):
                powers = (0.5 * (1 + sign * cosines)).pow(zeta).masked_fill(own, 0.0)
                angular.append((weights.mT @ powers @ weights)[:, t, u])
        features = torch.cat([radial.flatten(1), torch.cat(angular, dim=1)], dim=1) / 4
        return Features(features, None)


def training_input(steps: int) -> dict:
    """The contents of input.json."""
    return {
        "model": {
            "type_map": ["Cu", "Al"],
            "descriptor": {"type": "symmetry_functions", "rcut": 5.0},
            "fitting_net": {"neuron": [32, 32], "seed": 1},
        },
        "training": {
            "training_data": {"systems": str(DATA / "emt"), "batch_size": 4},
            "numb_steps": steps,
            "disp_freq": max(steps // 8, 1),
            "seed": 1,
        },
    }


def main(steps: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(parse_config(training_input(steps)), folder)
    trainer.run(lambda report: print(f"step {report.step}: forces {report.training['forces']:.4f} eV/A"))

    model = folder / "model.safetensors"
    potential = mdops.load(model)
    print("a step is evaluated by", potential.explain())
    atoms = first_frame(trainer.frames.data)
    atoms.calc = MDOps(potential)
    print(f"in ASE: {atoms.get_potential_energy():.4f} eV")
    for frame in Engine(atoms, potential, EnsembleSettings("nve", 300, timestep=1.0)).run(20, every=10):
        print(f"after {frame.step} steps: {frame.energy + frame.kinetic:.6f} eV in all")


def first_frame(data: Dataset) -> Atoms:
    """The first structure of the data."""
    own = data.atoms(0)
    symbols = [data.type_map[kind] for kind in data.types[own]]
    return Atoms(symbols, data.positions[own], cell=data.cell[0], pbc=data.pbc[0])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("custom_model"))
    arguments = parser.parse_args()
    main(arguments.steps, arguments.out)
