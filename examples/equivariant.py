"""An equivariant descriptor with message passing as a registered kind, in the manner of NequIP and MACE.

python examples/equivariant.py [--steps 200] [--out FOLDER]

An atom has features of the degrees 0 to lmax, which rotate with the system as spherical harmonics do. A layer makes
messages from harmonics of an edge's direction times trained functions of its length (NequIP: S. Batzner et al.,
arXiv:2101.03164). It computes them in the frame of the edge, where the harmonics are 1 for m = 0 and else 0 (eSCN: S.
Passaro and C. L. Zitnick, arXiv:2302.03655). Then it multiplies the sums over an atom's neighbours with each other
(MACE: I. Batatia et al., arXiv:2206.07697), as functions on the sphere (S. Luo, T. Chen and A. S. Krishnapriyan,
arXiv:2401.10216). Energies do not change if the system is rotated or mirrored, or if its atoms are renumbered.

The base class `GraphDescriptor` runs the layers; forces, virials, lists of neighbours, training and files come with it
(docs/how-to/new-descriptor.md). The parts of the layers are in docs/reference/equivariant.md.

mdops train input.json --kinds examples/equivariant.py   # "descriptor": {"type": "equivariant", "rcut": 4.0}
mdops md structure.xyz --model model.safetensors --time 1 --kinds examples/equivariant.py
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from ase.build import bulk
from torch import nn

import mdops
from mdops.md import Engine, EnsembleSettings
from mdops.models import Features, GraphDescriptor, Neighborhood, NeighborSpec, neighbor_graph_of, register
from mdops.nn.equivariant import ChannelLinear, DegreeLinear, DegreeNorm, GridNet, OrderLinear, coefficients
from mdops.ops import NeighborGraph, edge_frames, edge_rotate, edge_rotate_sum, fade_curve
from mdops.options import PRECISIONS, Options, key
from mdops.train import Trainer, parse_config

DATA = Path(__file__).parents[1] / "tests/data/training"
MMAX = 1  # the largest |m| of rows in the frames of edges, as in `edge_frames`


@dataclass(kw_only=True)
class EquivariantOptions(Options):
    """Keys of training inputs, and of model files."""

    KIND = "equivariant"

    rcut: float = key(4.0, "the cutoff of each layer", unit="A", above=0)
    lmax: int = key(2, "the largest degree of the features", low=1, below=7)
    channels: int = key(16, "features of each degree", low=1)
    radial: int = key(8, "Bessel functions of the distance", low=1)
    nlayer: int = key(2, "layers", low=1)
    neighbors: float = key(16.0, "a typical number of neighbours, whose root divides sums", above=0)
    precision: str = key(
        "default", "precision in which the weights are saved; default float64", choices=PRECISIONS
    )
    trainable: bool = key(True, "whether the weights are trained", of="training")
    seed: int | None = key(None, "of the random weights", low=0, where="input", of="training")

    @property
    def cutoff(self) -> float:
        return self.rcut


class Edges(NamedTuple):
    """The inputs of layers for E edges from atoms i to their neighbours j, with D = (lmax + 1)^2 and R = 3 lmax + 1.

    Attributes:
        graph: the atoms at the ends of edges.
        types: (N,) int64, of the atoms.
        turn: (E, R, D), rows with |m| <= 1 of the matrix that rotates coefficients into the edge's frame, z along it.
        radial: (E, radial), functions of the length, 1/A^1.5, zero at the cutoff.
    """

    graph: NeighborGraph
    types: torch.Tensor
    turn: torch.Tensor
    radial: torch.Tensor


def bessel(r: torch.Tensor, cutoff: float, number: int) -> torch.Tensor:
    """sqrt(2 / c) sin(n pi r / c) / r times an envelope: (E, 1), A, to (E, number), 1/A^1.5.

    The waves are those of J. Gasteiger et al., arXiv:2003.03123, which NequIP uses. One more derivative of the envelope
    than of theirs is zero at the cutoff.
    """
    n = torch.arange(1, number + 1, dtype=r.dtype, device=r.device)
    waves = math.sqrt(2 / cutoff) * torch.sin(n * math.pi / cutoff * r) / r
    return waves * fade_curve(r, cutoff, 5)


class Layer(nn.Module):
    """x_i + W A_i + W' (A_i * A_i), where A_i = sum_j D_ij^T M (R(r_ij) D_ij x_j) / sqrt(neighbors).

    D_ij rotates into the frame of the edge. R has a number for each degree, |m| and channel. M mixes degrees and
    channels, in the same way for m and -m. NequIP's tensor product with harmonics is such a matrix for each |m| (eSCN);
    here those of |m| > 1 are left out. `*` is the product of functions on the sphere, MACE's of correlation order 2.
    """

    def __init__(self, options: EquivariantOptions) -> None:
        super().__init__()
        lmax, width = options.lmax, options.channels
        self.lmax, self.scale = lmax, options.neighbors**-0.5
        self.norm = DegreeNorm(lmax, width)
        # Without biases, so that what is zero at the cutoff stays zero.
        self.hidden = ChannelLinear(options.radial, width)
        self.radial = ChannelLinear(width, (2 * lmax + 1) * width)
        self.mix = OrderLinear(lmax, MMAX, width, width, parity=True)
        self.keep = DegreeLinear(lmax, width, width)
        self.pair = DegreeLinear(lmax, width, 2 * width)
        self.product = GridNet(coefficients(lmax), width)
        self.out = DegreeLinear(lmax, width, width)

    def forward(self, nodes: torch.Tensor, local: None, edges: Edges) -> tuple[torch.Tensor, None]:
        """Nodes (N, D C) to (N, D C)."""
        graph = edges.graph
        x = nodes.unflatten(1, ((self.lmax + 1) ** 2, 1, -1))  # (N, D, 1, C)
        of_edge = self.radial(nn.functional.silu(self.hidden(edges.radial)))
        of_edge = of_edge.unflatten(1, (2 * self.lmax + 1, -1))  # for m = 0 and |m| = 1
        of_edge = torch.cat([of_edge, of_edge[:, self.lmax + 1 :]], 1)  # (E, R, C), for m = 0, -1 and 1
        rows = edge_rotate(edges.turn, self.norm(x).squeeze(2), graph.of_neighbor) * of_edge
        rows = self.mix(rows.unsqueeze(2)).squeeze(2)
        sums = edge_rotate_sum(edges.turn, rows, graph.of_center).unsqueeze(2) * self.scale
        x = x + self.keep(sums) + self.out(self.product(self.pair(sums)))
        return x.flatten(1), local


@register
class Equivariant(GraphDescriptor):
    """The features of degree 0 of each atom after the last layer."""

    Options = EquivariantOptions

    def __init__(self, options: EquivariantOptions, type_map: list[str]) -> None:
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        self.types = ChannelLinear(len(type_map), options.channels)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.nlayer))

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return (NeighborSpec(self.options.rcut, sel=None, mixed=True),)  # any number of neighbours

    @property
    def width(self) -> int:
        return self.options.channels

    def graph(self, near: Neighborhood) -> Edges:
        o = self.options
        graph = neighbor_graph_of(near, o.rcut)
        vectors = graph.vectors(near.displacements)  # (E, 3), A
        _, turn = edge_frames(vectors, o.lmax, MMAX)
        radial = bessel(vectors.norm(dim=1, keepdim=True), o.rcut, o.radial)
        return Edges(graph, near.centers, turn, radial)

    def start(self, graph: Edges) -> tuple[torch.Tensor, None]:
        """Trained numbers of the type in degree 0, and zeros in the other degrees."""
        own = self.types.weight[graph.types]
        return nn.functional.pad(own, (0, own.shape[1] * ((self.options.lmax + 1) ** 2 - 1))), None

    def finish(self, nodes: torch.Tensor, local: None, graph: Edges) -> Features:
        return Features(nodes[:, : self.width], None)


def training_input(steps: int) -> dict:
    """The contents of input.json."""
    return {
        "model": {
            "type_map": ["Cu", "Al"],
            "descriptor": {"type": "equivariant", "rcut": 4.0, "seed": 1},
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
    potential = mdops.load(folder / "model.safetensors")
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05)
    for frame in Engine(atoms, potential, EnsembleSettings("nve", 300, timestep=1.0)).run(20, every=10):
        print(f"after {frame.step} steps: {frame.energy + frame.kinetic:.6f} eV in all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("equivariant"))
    arguments = parser.parse_args()
    main(arguments.steps, arguments.out)
