"""Neighbour lists: all pairs of atoms not farther apart than a cutoff, through every periodic image."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from mdops.errors import InputError, NeighborOverflowError
from mdops.memory import memory
from mdops.ops._register import register_fake


class NeighborList(NamedTuple):
    """Each atom's neighbours in rows of one length, grouped by type (docs/reference/ops.md, "Conventions").

    Attributes:
        neighbors: (N, K) int32, -1 after the last neighbour of a row.
        images: (N, K) int32, packed periodic images (`unpack_images`).
        counts: (N, ntypes) int32, neighbours of each type.
        cutoff: every pair that is not farther apart than this is in the list, A.
        max_pairs: the most pairs there can be, if this is known without asking a GPU.
        graph_room: the room for edges, angles, and edges that form angles, in a graph from this list, if their numbers
            cannot be read from a GPU (`NeighborGraph.of_list`, `angle_edges`); None: their numbers.
        ghosts: (G,) int64, the images of atoms among the neighbours, as `mdops.models.force_moments.ghosts_of` lists
            them for atomic virials of messages; None: who needs them lists them, and waits for a GPU.
    """

    neighbors: torch.Tensor
    images: torch.Tensor
    counts: torch.Tensor
    cutoff: float
    max_pairs: int | None = None
    graph_room: tuple[int, int, int] | None = None
    ghosts: torch.Tensor | None = None


def pack_images(shifts: torch.Tensor) -> torch.Tensor:
    """Packs (..., 3) lattice shifts, each in -512 .. 511, into (...) int32.

    >>> pack_images(torch.tensor([1, 0, -1]))
    tensor(1072693249, dtype=torch.int32)
    """
    if shifts.numel() and (int(shifts.min()) < -512 or int(shifts.max()) > 511):
        raise InputError(f"pack_images: shifts up to {int(shifts.abs().max())}, expected -512 to 511")
    a, b, c = (shifts.int() & 1023).unbind(-1)
    return a | b << 10 | c << 20


def unpack_images(images: torch.Tensor) -> torch.Tensor:
    """The (..., 3) int32 lattice shifts of packed images.

    >>> unpack_images(pack_images(torch.tensor([1, 0, -1])))
    tensor([ 1,  0, -1], dtype=torch.int32)
    """
    fields = torch.stack([images, images >> 10, images >> 20], -1) & 1023
    return (fields ^ 512) - 512


def neighbor_matrix(
    positions: torch.Tensor,
    cell: torch.Tensor,
    pbc: torch.Tensor,
    batch: torch.Tensor,
    types: torch.Tensor,
    cutoff: float,
    ntypes: int,
    capacity: int,
    sort: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """All neighbours closer than `cutoff`, in rows of `capacity` places: no shape depends on the data.

    Both i -> j and j -> i are listed, and an atom's own periodic images. Atoms may lie outside the cell: the
    images refer to the positions as they are. A pair counts when its float64 pair vector, as `displacements`
    forms it, is shorter than the cutoff. The result does not depend on the number of threads.

    Args:
        positions: (N, 3) float64, A.
        cell: (S, 3, 3) float64, rows are lattice vectors, A.
        pbc: (S, 3) bool.
        batch: (N,) int32, the system of each atom, in any order.
        types: (N,) int32, below `ntypes`; -1 is a virtual atom.
        cutoff: A.
        ntypes: the number of types.
        capacity: K.
        sort: order the neighbours of a type by distance, and those as far by index; otherwise their order is
            unspecified, though always the same.

    Returns:
        neighbors, images (N, K) and counts (N, ntypes), all int32 and as ops.md describes them, and
        needed, (2,) int64: the length of the longest row and the first atom that has it (0 and -1 with no
        atom). If the length exceeds K, rows are cut at K: check it, or use `neighbor_list`. On a GPU a
        negative length says that a value does not fit (ops.md, "On a GPU"); the rows then mean nothing.

    Raises:
        RuntimeError: a shape, dtype or device that does not fit, a position or cell that is not finite, a
            singular periodic cell, a cutoff that is not positive or reaches over more than 511 images, or a
            type or system out of range; the message names the argument. The op never waits for a GPU: what it
            finds wrong in the values is in `needed`.
    """
    return torch.ops.mdops.neighbor_matrix(positions, cell, pbc, batch, types, cutoff, ntypes, capacity, sort)


def neighbor_pairs(
    positions: torch.Tensor,
    cell: torch.Tensor,
    pbc: torch.Tensor,
    batch: torch.Tensor,
    types: torch.Tensor,
    cutoff: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The pairs of `neighbor_matrix` as a flat list: their number P depends on the data.

    The pair vector is positions[j] - positions[i] + shifts . cell[batch[i]].

    Args:
        positions, cell, pbc, batch, types, cutoff: as in `neighbor_matrix`; of the types it only matters
            whether an atom is virtual.

    Returns:
        i (P,) int64 ascending, j (P,) int64 and shifts (P, 3) int32.

    Raises:
        RuntimeError: as `neighbor_matrix`.
    """
    return torch.ops.mdops.neighbor_pairs(positions, cell, pbc, batch, types, cutoff)


def neighbor_list(
    positions: torch.Tensor,
    cell: torch.Tensor | None,
    pbc: torch.Tensor | bool | Sequence[bool] | None,
    types: torch.Tensor,
    cutoff: float,
    *,
    batch: torch.Tensor | None = None,
    ntypes: int | None = None,
    capacity: int | None = None,
    sort: bool = False,
) -> NeighborList:
    """The neighbour list of one system or a batch, with rows as long as need be.

    >>> positions = torch.tensor([[0.0, 0.0, 0.0], [0.9, 0.0, 0.0], [0.0, 5.0, 0.0]], dtype=torch.float64)
    >>> neighbor_list(positions, None, None, torch.tensor([0, 1, 1], dtype=torch.int32), 2.0).counts
    tensor([[0, 1],
            [1, 0],
            [0, 0]], dtype=torch.int32)

    Args:
        positions: (N, 3) float64, A.
        cell: (3, 3) or (S, 3, 3) float64, rows are lattice vectors, A; None without periodic directions.
        pbc: (S, 3) or (3,) bool, or what becomes that; None: no direction is periodic.
        types: (N,) int32; -1 is a virtual atom.
        cutoff: A.
        batch: (N,) int32, the system of each atom; None is one system.
        ntypes: the number of types, by default the largest type and one.
        capacity: K, the length of a row; by default the atoms are counted first and the longest row sets it.
        sort: order the neighbours of a type by distance.

    Raises:
        NeighborOverflowError: a row is longer than the `capacity` given.
        InputError: an argument that does not fit; the message names it. On a CPU also a list that the memory
            cannot hold.
    """
    cell, pbc, batch = one_batch(positions, cell, pbc, batch)
    if ntypes is None:
        ntypes = max(1, int(types.max()) + 1) if types.numel() else 1
    arguments = (positions.detach(), cell.detach(), pbc, batch, types, float(cutoff), ntypes)
    try:
        if capacity is None:
            capacity = _longest_row(arguments, neighbor_matrix(*arguments, 0)[3])[0]
        _require_memory(positions, capacity, cutoff)
        neighbors, images, counts, needed = neighbor_matrix(*arguments, capacity, sort)
        longest, atom = _longest_row(arguments, needed)
    except RuntimeError as error:
        raise _input_error(error) from None
    if longest > capacity:
        raise NeighborOverflowError(longest, capacity, atom)
    return NeighborList(neighbors, images, counts, float(cutoff))


def _require_memory(positions: torch.Tensor, capacity: int, cutoff: float) -> None:
    """Raises InputError if the process would run out of memory on a CPU and be killed; a GPU raises by itself."""
    size = 8 * positions.shape[0] * capacity  # a neighbour and an image
    if not positions.is_cuda and size > memory():
        raise InputError(
            f"the neighbour list of {positions.shape[0]} atoms would take {size / 2**30:.3g} GiB, more than "
            f"is available: an atom has up to {capacity} neighbours within {cutoff:g} A. Are positions and "
            "cell in A?"
        )


def _longest_row(arguments: tuple[Any, ...], needed: torch.Tensor) -> tuple[int, int]:
    """Its length and atom. Waits for a GPU; input that it refused raises the CPU op's error here."""
    longest, atom = needed.tolist()
    if longest < 0:
        on_cpu: Any = [a.cpu() if isinstance(a, torch.Tensor) else a for a in arguments]
        torch.ops.mdops.neighbor_matrix(*on_cpu, 0, False)
        raise RuntimeError(
            f"mdops::neighbor_matrix: refused with code {longest} at {atom}, and the CPU did not"
        )
    return longest, atom


def one_batch(
    positions: torch.Tensor,
    cell: torch.Tensor | None,
    pbc: torch.Tensor | bool | Sequence[bool] | None,
    batch: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cell, pbc and batch in the shapes of docs/reference/ops.md."""
    if cell is None:
        systems = int(batch.max()) + 1 if batch is not None and batch.numel() else 1
        cell = torch.zeros(max(systems, 1), 3, 3, dtype=torch.float64, device=positions.device)
    elif cell.dim() == 2:
        cell = cell[None]
    if not isinstance(pbc, torch.Tensor):
        given = False if pbc is None else pbc
        # One value is written by the device: a copy could not be captured in a CUDA graph.
        pbc = (
            torch.full((), given, device=positions.device)
            if isinstance(given, bool)
            else torch.tensor(given, device=positions.device)
        )
    if pbc.dim() < 2:
        try:
            pbc = pbc.expand(cell.shape[0], 3)
        except RuntimeError:
            raise InputError(
                f"argument `pbc` has shape {tuple(pbc.shape)}, expected (S, 3) or (3,)"
            ) from None
    if batch is None:
        batch = torch.zeros(positions.shape[:1], dtype=torch.int32, device=positions.device)
    return cell, pbc, batch


def _input_error(error: RuntimeError) -> Exception:
    """An op's own error as the exception for wrong input; other errors are not changed."""
    message = str(error)
    start = message.find("mdops::")
    return InputError(message[start:].splitlines()[0]) if start >= 0 else error


@register_fake("neighbor_matrix")
def _(
    positions: Any,
    cell: Any,
    pbc: Any,
    batch: Any,
    types: Any,
    cutoff: float,
    ntypes: int,
    capacity: int,
    sort: bool,
) -> tuple[torch.Tensor, ...]:
    n = positions.shape[0]
    return (
        positions.new_empty((n, capacity), dtype=torch.int32),
        positions.new_empty((n, capacity), dtype=torch.int32),
        positions.new_empty((n, ntypes), dtype=torch.int32),
        positions.new_empty((2,), dtype=torch.int64),
    )


@register_fake("neighbor_pairs")
def _(positions: Any, cell: Any, pbc: Any, batch: Any, types: Any, cutoff: float) -> tuple[torch.Tensor, ...]:
    pairs = torch.library.get_ctx().new_dynamic_size()
    return (
        positions.new_empty((pairs,), dtype=torch.int64),
        positions.new_empty((pairs,), dtype=torch.int64),
        positions.new_empty((pairs, 3), dtype=torch.int32),
    )
