"""Descriptors that pass messages between atoms, in layers on a graph of edges and angles."""

import functools
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mdops.memory import memory
from mdops.models.contract import Descriptor, Features
from mdops.models.neighborhood import Neighborhood
from mdops.nn.net import tensor
from mdops.ops import NeighborGraph, NeighborList
from mdops.system import Exchange
from mdops.tracing import is_exported

RESIDUAL = "res_residual"  # the update style with trained weights
UPDATE_STYLES = (RESIDUAL, "res_avg", "res_incr")  # DeePMD-kit's

# The memory that a layer in runs saves for the gradient, and that which a run needs forward and backward, over that of
# the features of edges and angles.
_KEPT, _RUNNING = 2, 8
# Shares of the device's memory: for what all layers save, and for what a run of atoms needs.
_SHARE, _SHARE_OF_RUN = 0.5, 1 / 16
# With fewer atoms memory is not counted, as they do not fill it.
MANY_ATOMS = 1000


def new_residuals(
    shapes: Mapping[str, tuple[int, int]],
    options: Any,
    random: np.random.Generator,
    precision: str,
    dtype: torch.dtype,
) -> dict[str, list[torch.Tensor]]:
    """The initial trained weights of a layer's messages; `shapes`: their number and width by name."""

    def residual(width: int) -> torch.Tensor:
        value = np.full(width, options.update_residual)
        if options.update_residual_init == "norm":
            value = random.normal(0, options.update_residual, width)
        return tensor(value.astype(precision), dtype)

    return {name: [residual(width) for _ in range(count)] for name, (count, width) in shapes.items()}


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
    Without `near.graph_room` it waits for the device. With `near.nodes`, neighbours are indices of all atoms.

    Args:
        cutoff, angle_cutoff: A; without the second there are no angles.
        sel, angle_sel: the nearest so many neighbours have places, where `near.truncates`; None: all.
        excluded: (ntypes, ntypes) bool, pairs of types that are not edges, besides `near.absent_pairs`.
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
        nodes=near.nodes,
        edge_capacity=room[0],
        angle_capacity=room[1],
    )


class GraphDescriptor(Descriptor):
    """Base of descriptors that pass messages: features of nodes (atoms) go through layers, each of which reads the
    nodes of the neighbours.

    Atoms share only nodes. Features of edges and angles belong to the atom in their centre. So a driver may stop
    between two layers: to exchange the nodes of other processes' atoms, to drop what a layer saved and recompute it for
    the gradient, or to take a layer's atoms in runs.

    Attributes:
        layers: each takes `nodes` (N, W), `local` and the graph, and gives the new `nodes` and `local`; of ghosts,
            which come last, it may leave the nodes out.
        goes_in_runs: whether a layer takes a fourth argument: the nodes of the graph's atoms, if these are only some of
            the atoms: a run, or all but ghosts.
    """

    layers: nn.ModuleList
    goes_in_runs = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if vars(cls).get("captures") and cls.graph_sizes is Descriptor.graph_sizes:
            raise TypeError(
                f"{cls.__name__} has `captures`, and so needs `graph_sizes`: a CUDA graph has no room else"
            )

    @property
    def reach(self) -> int:
        return max(len(self.layers), 1)

    @abstractmethod
    def graph(self, near: Neighborhood) -> Any:
        """What all layers read and none changes: edges (`neighbor_graph_of`), and their data for this kind."""

    @abstractmethod
    def start(self, graph: Any) -> tuple[torch.Tensor, Any]:
        """The first nodes (N, W), and the first features of edges and angles: tensors in a tuple, or None."""

    @abstractmethod
    def finish(self, nodes: torch.Tensor, local: Any, graph: Any) -> Features:
        """The features of each atom, from the last layer's results."""

    def _fills_memory(self, kept: int, device: torch.device) -> bool:
        """Whether all layers may exceed the device's memory, if each saves `kept` bytes for the gradient."""
        return len(self.layers) * kept > _SHARE * device_memory(device)

    def _atoms_at_once(self, of_local: int, nodes: torch.Tensor) -> int:
        """How many atoms' edges and angles a run takes; `of_local`: the bytes of all edges and angles."""
        room = _SHARE_OF_RUN * device_memory(nodes.device)
        return max(1, int(len(nodes) * room / (_RUNNING * of_local)))

    def keeps_to_memory(self, graph: Any) -> bool:
        """Whether the layers themselves recompute what does not fit into memory."""
        return False

    def bytes_of(self, local: Any, graph: Any) -> int:
        """The bytes of edges' and angles' features between layers; `local`: those before the first."""
        return _bytes(local)

    def forward(self, near: Neighborhood) -> Features:
        exchange = near.system.exchange
        if exchange is None:
            return self._by_layers(near, exchange)
        own = near.of_atoms(slice(exchange.atoms)) if self.goes_in_runs else near
        found = self._by_layers(own, exchange)
        ghosts = near.system.atoms - len(found.values)
        return found.with_zeros(ghosts) if ghosts else found

    def _by_layers(self, near: Neighborhood, exchange: Exchange | None) -> Features:
        graph = self.graph(near)
        nodes, local = self.start(graph)
        once = near.first_derivative_only
        in_runs = once and self.goes_in_runs and near.graph_room is None
        of_local = self.bytes_of(local, graph) if in_runs else 0
        if in_runs and self._fills_memory(_KEPT * of_local, nodes.device):
            size = self._atoms_at_once(of_local, nodes)
            del graph, nodes, local
            return self._in_runs(near, exchange, size)
        many = once and not is_exported() and len(nodes) >= MANY_ATOMS
        counts, run = many and not self.keeps_to_memory(graph), _run
        for layer in self.layers:
            every = nodes if exchange is None else exchange(nodes)
            given = (every, local, graph) if near.nodes is None else (every, local, graph, nodes)
            if counts:
                kept, found = run_counted(layer, *given)
                kept += max(_bytes(found[1]) - _bytes(local), 0)  # other layers save their inputs
                if self._fills_memory(kept, nodes.device):
                    del found
                    run, found = run_again, run_again(layer, *given)
                (nodes, local), counts = found, False
            else:
                nodes, local = run(layer, *given)
        return self.finish(nodes, local, graph)

    def _in_runs(self, near: Neighborhood, exchange: Exchange | None, size: int) -> Features:
        """Runs each layer for the edges and angles of `size` atoms at a time. Saves only features between layers."""
        runs = [slice(first, first + size) for first in range(0, near.system.atoms, size)]
        graphs = [self.graph(near.of_atoms(run)) for run in runs]
        nodes = torch.cat([self.start(graph)[0] for graph in graphs])
        local: list[Any] = [None] * len(runs)
        for k, layer in enumerate(self.layers):
            every = nodes if exchange is None else exchange(nodes)
            # The first layer recomputes its inputs instead of saving them.
            step = functools.partial(self._begin, layer) if k == 0 else layer
            given = zip(local, graphs, nodes.split(size), strict=True)
            found = [run_again(step, every, of_run, graph, own) for of_run, graph, own in given]
            nodes, local = torch.cat([own for own, _ in found]), [of_run for _, of_run in found]
        parts = [self.finish(*of_run) for of_run in zip(nodes.split(size), local, graphs, strict=True)]
        axes = [part.axes for part in parts if part.axes is not None]
        return Features(torch.cat([part.values for part in parts]), torch.cat(axes) if axes else None)

    def _begin(self, layer: nn.Module, nodes: torch.Tensor, _: Any, graph: Any, own: torch.Tensor) -> Any:
        return layer(nodes, self.start(graph)[1], graph, own)


def _run(layer: Callable[..., Any], *given: Any) -> Any:
    return layer(*given)


_running = threading.local()


def runs_again() -> bool:
    """Whether a layer is being recomputed for what it saves: its results are not used."""
    return getattr(_running, "again", False)


@contextmanager
def _again() -> Iterator[None]:
    before, _running.again = runs_again(), True
    try:
        yield
    finally:
        _running.again = before


def run_again(layer: Callable[..., Any], *given: Any) -> Any:
    """layer(given), which saves only its inputs, and is recomputed for its first derivatives."""
    context = copy_context()

    def within(*given: Any) -> Any:
        # On a GPU these derivatives run in another thread, which does not have this context.
        return context.copy().run(layer, *given)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _again()

    options: dict[str, Any] = {"preserve_rng_state": False, "determinism_check": "none"}
    return checkpoint(within, *given, use_reentrant=False, context_fn=contexts, **options)


def run_counted(function: Callable[..., Any], *given: Any) -> tuple[int, Any]:
    """function(given), and before it the bytes saved for its gradient, without a layer's weights."""
    kept: dict[int, int] = {}

    def count(value: torch.Tensor) -> torch.Tensor:
        memory = value.untyped_storage()
        kept[memory.data_ptr()] = memory.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(count, lambda value: value):
        found = function(*given)
    for weight in function.parameters() if isinstance(function, nn.Module) else ():
        kept.pop(weight.untyped_storage().data_ptr(), None)
    return sum(kept.values()), found


class Room:
    """How many bytes may still be saved for the gradient. What does not fit is recomputed."""

    def __init__(self, left: float) -> None:
        self.left = left

    def run(self, function: Callable[..., Any], *given: Any) -> Any:
        """function(given), recomputed for its gradient if no room is left."""
        if self.left <= 0:
            return run_again(function, *given)
        kept, found = run_counted(function, *given)
        self.left -= kept
        return found

    def by_rows(self, function: Callable[..., torch.Tensor], *rows: torch.Tensor, size: int) -> torch.Tensor:
        """function(rows), for the first `size` rows alone. If these show that the others fit, they run together and
        are saved. Otherwise they go `size` at a time, by `run`."""
        count = len(rows[0])
        if self.left > 0 and size < count:
            left = self.left
            found = [self.run(function, *(own[:size] for own in rows))]
            others = [own[size:] for own in rows]
            if (left - self.left) * (count - size) <= self.left * size:
                self.left -= (left - self.left) * (count - size) / size
                return torch.cat([*found, function(*others)])
        else:
            found, others = [], list(rows)
        given = zip(*(own.split(size) for own in others), strict=True)
        return torch.cat([*found, *(self.run(function, *own) for own in given)])


def _bytes(local: Any) -> int:
    """The bytes of edges' and angles' features."""
    return sum(value.numel() * value.element_size() for value in local or () if value is not None)


def device_memory(device: torch.device) -> int:
    """In bytes; on a GPU, the part that `torch.cuda.set_per_process_memory_fraction` allows."""
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
        return int(total * torch.cuda.get_per_process_memory_fraction(device))
    return memory()
