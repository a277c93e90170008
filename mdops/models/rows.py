"""Helpers of descriptors with neighbours as rows, ordered by atom (`mdops.ops.neighbor_rows`)."""

from typing import Any

import torch
import torch.nn.functional as F

from mdops.models.neighborhood import Neighborhood
from mdops.tracing import is_recorded

_SMALL_TABLE = 16  # rows


def table_rows(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows of a table (n, M) at an index. On a GPU a small table's gradient is a product: PyTorch would sort the
    indices."""
    if not (table.is_cuda and table.requires_grad and len(table) <= _SMALL_TABLE):
        return F.embedding(index, table)
    return (index[..., None] == torch.arange(len(table), device=table.device)).to(table.dtype) @ table


def rows_in(offsets: torch.Tensor, most: int) -> int:
    """The number of rows, or their capacity while a GPU's steps are recorded."""
    if offsets.is_cuda and is_recorded(offsets):
        return most
    found: Any = offsets[-1].item()  # symbolic while a program is exported
    return found


def pair_kinds(near: Neighborhood, slots: torch.Tensor) -> torch.Tensor:
    """(E,) int64: centre's type * ntypes + neighbour's type of each of these slots of `near`; arbitrary for empty
    slots."""
    slot = slots.clamp(min=0).long()
    kinds = near.slot_types.flatten()[slot].clamp(max=near.ntypes - 1)
    return near.centers[slot // near.neighbors.shape[1]] * near.ntypes + kinds
