"""A descriptor of one's own as a registered kind: it loads, saves, trains and simulates like any other.

python examples/custom_model.py [--steps 400] [--out FOLDER]

Each atom sees the moments of its neighbours' density, M[b, a] = sum_j c_b(type j) g_b(s_j) R_j[a]: Gaussians g_b
of s, a learned weight c_b of the neighbour's element, and the row R of the environment matrix. Contracting the
directions of two moments makes features that do not change when the atoms are turned. A net on top of them is there
already ("ener"), and so is everything else: with this file's name, the command line knows the kind, too:

mdops train input.json --kinds examples/custom_model.py   # "descriptor": {"type": "gaussian_moments", "rcut": 5.0}
mdops md structure.xyz --model model.safetensors --time 1 --kinds examples/custom_model.py
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ase import Atoms

import mdops
from mdops.calculator import MDOps
from mdops.md import Engine, Physics
from mdops.models import Descriptor, Features, Neighborhood, NeighborSpec, register
from mdops.nn.net import array, tensor
from mdops.ops import env_mat
from mdops.options import PRECISIONS, Options, key, saved_precision
from mdops.train import Dataset, Trainer, parse_config

DATA = Path(__file__).parents[1] / "tests/data/training"


@dataclass(kw_only=True)
class MomentOptions(Options):
    """Keys of training inputs, and of model files: written once, here."""

    KIND = "gaussian_moments"
    NAMES = ("gaussian_moments",)

    rcut: float = key(5.0, "the cutoff", unit="A", above=0)
    rcut_smth: float = key(2.0, "where the switch begins to fall", unit="A", low=0)
    gaussians: int = key(10, "how many Gaussians there are of s, from 0 to 0.5/A", low=2)
    precision: str = key("default", "in which the weights are saved; float64 by default", choices=PRECISIONS)
    trainable: bool = key(True, "whether the weights of elements are trained", of="training")
    seed: int | None = key(None, "of the random weights", where="input", of="training")

    @property
    def cutoff(self) -> float:
        return self.rcut


@register
class GaussianMoments(Descriptor):
    """D = (M[b, 0], sum_a M[b, a] M[c, a] over the directions a = x, y, z) / 10, B + B^2 numbers."""

    Options = MomentOptions

    def __init__(
        self, options: MomentOptions, type_map: list[str], neighbor: torch.Tensor, center: torch.Tensor
    ) -> None:
        """Takes the weights (ntypes, B) of elements as neighbours and as centres."""
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        self.neighbor, self.center = torch.nn.Parameter(neighbor), torch.nn.Parameter(center)
        # With mean 0 the row of an absent neighbour is 0, so that it adds nothing to a sum.
        ntypes, dtype = len(type_map), neighbor.dtype
        self.register_buffer("mean", torch.zeros(ntypes, dtype=dtype), persistent=False)
        self.register_buffer("std", torch.ones(ntypes, 2, dtype=dtype), persistent=False)
        self.register_buffer(
            "centers", torch.linspace(0, 0.5, options.gaussians, dtype=dtype), persistent=False
        )

    @property
    def neighbors(self) -> NeighborSpec:
        return NeighborSpec(self.options.rcut, sel=None)  # any number of them

    @property
    def width(self) -> int:
        return self.options.gaussians * (self.options.gaussians + 1)

    def forward(self, near: Neighborhood) -> Features:
        smooth = {"cutoff": self.options.rcut, "cutoff_smooth": self.options.rcut_smth}
        rows = env_mat(near.displacements, near.counts, near.types, self.mean, self.std, **smooth)
        gaussians = torch.exp(-(((rows[..., :1] - self.centers) / self.centers[1]) ** 2))
        # Slots without a neighbour have the type ntypes: the weight there is 0.
        weights = torch.nn.functional.pad(self.neighbor, (0, 0, 0, 1))[near.kinds]
        moments = torch.einsum("nkb,nka->nba", weights * gaussians, rows)
        moments = moments * self.center[near.centers][..., None] / 10
        vectors = moments[..., 1:]  # they turn with the atoms; their products do not
        features = torch.cat([moments[..., 0], (vectors @ vectors.mT).flatten(1)], dim=1)
        return Features(features, vectors.mT)

    @classmethod
    def random(cls, options, type_map, seed, dtype):
        random = np.random.default_rng(seed)
        weights = [random.uniform(size=(len(type_map), options.gaussians)) for _ in range(2)]
        return cls(options, type_map, *(tensor(w, dtype) for w in weights))

    @classmethod
    def from_tree(cls, tree, type_map, dtype):
        weights = (tensor(tree["@variables"][name], dtype) for name in ("neighbor", "center"))
        return cls(MomentOptions.from_tree(tree), type_map, *weights)

    def to_tree(self):
        precision = saved_precision(self.options.precision)
        weights = {"neighbor": array(self.neighbor, precision), "center": array(self.center, precision)}
        head = {"@class": "Descriptor", "@version": 1, "type": self.options.KIND}
        return {**head, **self.options.to_tree(), "type_map": self.type_map, "@variables": weights}


def training_input(steps: int) -> dict:
    """What input.json would hold."""
    return {
        "model": {
            "type_map": ["Cu", "Al"],
            "descriptor": {"type": "gaussian_moments", "rcut": 5.0},
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
    for frame in Engine(atoms, potential, Physics("nve", 300, timestep=1.0)).run(20, every=10):
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
