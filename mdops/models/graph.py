"""Descriptors that pass messages between atoms, in layers on a graph of edges and angles."""

from abc import abstractmethod
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mdops.models.contract import Descriptor, Features
from mdops.models.neighborhood import Neighborhood
from mdops.ops import NeighborGraph, NeighborList

RESIDUAL = "res_residual"  # the update style with trained weights
UPDATE_STYLES = (RESIDUAL, "res_avg", "res_incr")  # DeePMD-kit's

# A layer keeps so many times the memory of the numbers of edges and angles for the gradient; of a GPU's memory that may
# take a share.
_KEPT, _SHARE = 3, 0.5


def neighbor_graph_of(
    near: Neighborhood,
    cutoff: float,
    *,
    sel: int | None = None,
    angle_cutoff: float = 0.0,
    angle_sel: int | None = None,
    excluded: torch.Tensor | None = None,
) -> NeighborGraph:
    """The edges of `near` within a cutoff, and the angles between edges within a second one; the nodes are its atoms.
    Without `near.graph_room` it waits for the device.

    Args:
        cutoff, angle_cutoff: A; without the second there are no angles.
        sel, angle_sel: the nearest so many neighbours have places, where `near.truncates`; None: all.
        excluded: (ntypes, ntypes) bool, pairs of types that are no edges, besides `near.absent_pairs`.
    """
    pairs = NeighborList(near.neighbors, near.images, near.counts, near.cutoff)
    room = near.graph_room or (None, None, None)
    both = [mask for mask in (near.absent_pairs, excluded) if mask is not None]
    return NeighborGraph.of_list(
        pairs,
        near.displacements,
        near.types,
        cutoff,
        angle_cutoff=angle_cutoff,
        edge_sel=sel if near.truncates else None,
        angle_sel=angle_sel if near.truncates else None,
        pair_mask=torch.stack(both).any(0) if both else None,
        edge_capacity=room[0],
        angle_capacity=room[1],
    )


class GraphDescriptor(Descriptor):
    """Base of descriptors that pass messages: numbers of nodes (atoms) go through layers, each of which looks at the
    nodes of the neighbours.

    Nodes alone cross atoms. What a layer knows of edges and angles belongs to the atom in their centre. So a driver may
    stop between two layers: to exchange the nodes of atoms that other processes have, to forget what a layer kept and
    compute it again for the gradient, or to take a layer's atoms in runs.

    Attributes:
        layers: each takes `nodes` (N, W), `local` and the graph, and gives the new `nodes` and `local`.
        starts_from_types: whether the first nodes follow from the types of the atoms alone.
    """

    layers: nn.ModuleList
    starts_from_types = False

    @property
    def reach(self) -> int:
        return max(len(self.layers), 1)

    @abstractmethod
    def graph(self, near: Neighborhood) -> Any:
        """What all layers look at and none changes: edges (`neighbor_graph_of`), and what the kind has of each."""

    @abstractmethod
    def start(self, graph: Any) -> tuple[torch.Tensor, Any]:
        """The first nodes (N, W), and the first numbers of edges and angles: tensors in a tuple, or None."""

    @abstractmethod
    def finish(self, nodes: torch.Tensor, local: Any, graph: Any) -> Features:
        """The numbers of each atom, of what the last layer gave."""

    def _fills_memory(self, local: Any) -> bool:
        """Whether what all layers keep for the gradient may not fit into a GPU."""
        numbers = [value for value in (local or ()) if value is not None]
        if not numbers or numbers[0].device.type != "cuda":
            return False
        kept = _KEPT * len(self.layers) * sum(value.numel() * value.element_size() for value in numbers)
        has: int = torch.cuda.get_device_properties(numbers[0].device).total_memory
        return kept > _SHARE * has

    def forward(self, near: Neighborhood) -> Features:
        graph = self.graph(near)
        nodes, local = self.start(graph)
        exchange, is_known = near.system.exchange, self.starts_from_types
        forgets = near.first_derivative_only and self._fills_memory(local)
        for layer in self.layers:
            nodes = nodes if exchange is None or is_known else exchange(nodes)
            run = _run_again if forgets else _run
            nodes, local = run(layer, nodes, local, graph)
            is_known = False
        return self.finish(nodes, local, graph)


def _run(layer: nn.Module, nodes: torch.Tensor, local: Any, graph: Any) -> Any:
    return layer(nodes, local, graph)


def _run_again(layer: nn.Module, nodes: torch.Tensor, local: Any, graph: Any) -> Any:
    """The layer keeps nothing but what it takes, and runs once more for its gradient."""
    options: dict[str, Any] = {"preserve_rng_state": False, "determinism_check": "none"}
    return checkpoint(layer, nodes, local, graph, use_reentrant=False, **options)
