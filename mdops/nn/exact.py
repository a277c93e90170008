"""T of se_e2_a with the embedding nets themselves, evaluated on the neighbours that are there."""

import torch

from mdops.nn.moments import Moments
from mdops.nn.se_e2_a import SeE2A
from mdops.ops.env_mat import env_mat


def exact_moments(
    descriptor: SeE2A, displacements: torch.Tensor, counts: torch.Tensor, types: torch.Tensor
) -> Moments:
    """T from pair vectors (N, K, 3), their counts (N, ntypes) and the centres' types (N,)."""
    d = descriptor
    rows = env_mat(
        displacements,
        counts,
        types,
        d.mean,
        d.std,
        cutoff=d.cutoff,
        cutoff_smooth=d.cutoff_smooth,
        protection=d.protection,
        pair_mask=d.pair_mask,
    )
    squared = displacements.detach().square().sum(-1)
    kind = kinds_within(squared, counts, types, d.cutoff)
    within = torch.stack([(kind == t).sum(1) for t in range(d.ntypes)], dim=1).int()
    centre = types.long().clamp(min=0)
    masked = torch.nn.functional.pad(d.pair_mask, (0, 1))[centre[:, None], kind]
    embedding = _embedding(d, rows, kind.masked_fill(masked, d.ntypes), centre)
    t = rows.transpose(1, 2) @ embedding / d.slots + d.padding(d.absent(within, types), types)
    beyond = squared.new_full((squared.shape[0], 1), d.cutoff**2)  # a row may have no slots at all
    nearest = torch.cat([squared.masked_fill(kind == d.ntypes, d.cutoff**2), beyond], dim=1).amin(1).sqrt()
    return Moments(t, within, nearest)


def kinds_within(
    squared: torch.Tensor, counts: torch.Tensor, types: torch.Tensor, cutoff: float
) -> torch.Tensor:
    """(N, K) int64: the type of the neighbour in each slot, ntypes where none is within the cutoff."""
    slot = torch.arange(squared.shape[1], device=counts.device)
    kind = (slot[None, :, None] >= counts.cumsum(1)[:, None, :]).sum(-1)
    seen = (squared < cutoff**2) & (types >= 0)[:, None]
    return torch.where(seen, kind, counts.shape[1])


def _embedding(d: SeE2A, rows: torch.Tensor, kind: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """G (N, K, M): the nets at the first entry of each row, zero where `kind` is ntypes."""
    flat, s = kind.flatten(), rows[..., :1].reshape(-1, 1)
    centre_of_slot = centre[:, None].expand_as(kind).reshape(-1)
    index, value = [], []
    for t in range(d.ntypes):
        for c in range(1 if d.type_one_side else d.ntypes):
            chosen = flat == t if d.type_one_side else (flat == t) & (centre_of_slot == c)
            index.append(torch.nonzero(chosen)[:, 0])
            value.append(d.net(c, t)(s[index[-1]]))
    g = s.new_zeros(s.shape[0], d.width).index_copy(0, torch.cat(index), torch.cat(value))
    return g.view(*kind.shape, d.width)
