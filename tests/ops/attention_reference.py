"""The formulas of attention on sequences in PyTorch's own operations, a sequence at a time."""

import torch


def attention(q, k, v, offsets, bias=None, gate=None, switch=None, absent=None, scale=1.0, shift=0.0):
    """out (T, H, E) and logsumexp (T, H) of torch.ops.mdops.ragged_attention, differentiable."""
    out, logsumexp = torch.zeros_like(v), q.new_zeros(q.shape[:2])
    place = 0
    for b, (begin, end) in enumerate(zip(offsets.tolist()[:-1], offsets.tolist()[1:], strict=True)):
        n = end - begin
        if n == 0:
            continue
        rows = slice(begin, end)
        z = scale * torch.einsum("jhd,lhd->hjl", q[rows], k[rows])
        if bias is not None:
            z = z + bias[:, place : place + n * n].reshape(-1, n, n)
        place += n * n
        m = torch.ones_like(z)
        if switch is not None:
            a = switch[rows, None] * switch[rows]
            z, m = (z + shift) * a, m * a
        if gate is not None:
            m = m * (gate[rows] @ gate[rows].T)
        top = z.detach().amax(-1).clamp(min=0)
        more = 0.0 if absent is None else absent[b].to(z.dtype) * (-top).exp()
        total = top + ((z - top[..., None]).exp().sum(-1) + more).log()
        p = (z - total[..., None]).exp()
        out = out.index_copy(
            0, torch.arange(begin, end, device=q.device), torch.einsum("hjl,lhe->jhe", p * m, v[rows])
        )
        logsumexp = logsumexp.index_copy(0, torch.arange(begin, end, device=q.device), total.T)
    return out, logsumexp
