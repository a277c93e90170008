"""A descriptor with message passing as a registered kind: it loads, saves, trains and simulates like any other.

python examples/message_passing.py [--steps 400] [--out FOLDER]

An invariant graph network similar to SchNet (K. T. Schuett et al., J. Chem. Phys. 148, 241722, 2018): an atom's first
features are trained numbers of its type. Each layer adds messages from its neighbours, which depend on the features of
both atoms and on their distance. After two layers, features depend on atoms two cutoffs away. The base class
`GraphDescriptor` runs the layers; forces, virials, neighbour lists, training and files come with it. Commands know the
kind if they get this file's name:

mdops train input.json --kinds examples/message_passing.py   # "descriptor": {"type": "messages", "rcut": 4.0}
mdops md structure.xyz --model model.safetensors --time 1 --kinds examples/message_passing.py
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
from mdops.calculator import MDOps
from mdops.md import Engine, EnsembleSettings
from mdops.models import Features, GraphDescriptor, Neighborhood, NeighborSpec, neighbor_graph_of, register
from mdops.ops import NeighborGraph, edge_gather, edge_scatter
from mdops.options import PRECISIONS, Options, key
from mdops.train import Trainer, parse_config

DATA = Path(__file__).parents[1] / "tests/data/training"


@dataclass(kw_only=True)
class MessageOptions(Options):
    """Keys of training inputs, and of model files."""

    KIND = "messages"

    rcut: float = key(4.0, "the cutoff of each layer", unit="A", above=0)
    width: int = key(16, "numbers of an atom", low=1)
    radial: int = key(8, "Gaussians of the distance", low=2)
    nlayer: int = key(2, "layers", low=1)
    precision: str = key(
        "default", "precision in which the weights are saved; default float64", choices=PRECISIONS
    )
    trainable: bool = key(True, "whether the weights are trained", of="training")
    seed: int | None = key(None, "of the random weights", low=0, where="input", of="training")

    @property
    def cutoff(self) -> float:
        return self.rcut


class Edges(NamedTuple):
    """The edges i -> j, the types of the atoms, and each edge's Gaussians (E, radial) and switch (E, 1)."""

    graph: NeighborGraph
    types: torch.Tensor
    gaussians: torch.Tensor
    switch: torch.Tensor


class Layer(nn.Module):
    """n_i + W sum_j f(r_ij) silu(A n_i + B n_j + C g(r_ij)) / 10, where A n and B n are computed once per atom."""

    def __init__(self, width: int, radial: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.other = nn.Linear(width, width, bias=False)
        self.distance = nn.Linear(radial, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, nodes: torch.Tensor, local: None, edges: Edges) -> tuple[torch.Tensor, None]:
        graph = edges.graph
        of_atoms = edge_gather(self.own(nodes), graph.of_center) + edge_gather(
            self.other(nodes), graph.of_neighbor
        )
        messages = nn.functional.silu(of_atoms + self.distance(edges.gaussians)) * edges.switch
        return nodes + self.out(edge_scatter(messages, graph.of_center) / 10), local


@register
class Messages(GraphDescriptor):
    """The features of each atom after the last layer."""

    Options = MessageOptions

    def __init__(self, options: MessageOptions, type_map: list[str]) -> None:
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        self.types = nn.Embedding(len(type_map), options.width)
        self.layers = nn.ModuleList(Layer(options.width, options.radial) for _ in range(options.nlayer))

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return (NeighborSpec(self.options.rcut, sel=None, mixed=True),)  # any number of neighbours

    @property
    def width(self) -> int:
        return self.options.width

    def graph(self, near: Neighborhood) -> Edges:
        graph = neighbor_graph_of(near, self.options.rcut)
        r = graph.vectors(near.displacements).norm(dim=1, keepdim=True)
        centers = torch.linspace(0.5, self.options.rcut, self.options.radial, dtype=r.dtype, device=r.device)
        width = self.options.rcut / self.options.radial
        switch = 0.5 * (1 + torch.cos(math.pi / self.options.rcut * r))
        return Edges(graph, near.centers, torch.exp(-(((r - centers) / width) ** 2)), switch)

    def start(self, graph: Edges) -> tuple[torch.Tensor, None]:
        return self.types(graph.types), None

    def finish(self, nodes: torch.Tensor, local: None, graph: Edges) -> Features:
        return Features(nodes, None)


def training_input(steps: int) -> dict:
    """The contents of input.json."""
    return {
        "model": {
            "type_map": ["Cu", "Al"],
            "descriptor": {"type": "messages", "rcut": 4.0},
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
    print("a step is evaluated by", potential.explain())
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.05)
    atoms.calc = MDOps(potential)
    print(f"in ASE: {atoms.get_potential_energy():.4f} eV")
    for frame in Engine(atoms, potential, EnsembleSettings("nve", 300, timestep=1.0)).run(20, every=10):
        print(f"after {frame.step} steps: {frame.energy + frame.kinetic:.6f} eV in all")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("message_passing"))
    arguments = parser.parse_args()
    main(arguments.steps, arguments.out)
