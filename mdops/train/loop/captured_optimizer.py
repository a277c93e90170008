"""Optimizers' steps for CUDA graphs: Adam's for a few large weights in pieces, which keep a GPU busy."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from mdops.train.loop.muon import HybridMuon

# Numbers of a piece. In operations on lists a block takes up to 65,536 numbers of a tensor: some dozen blocks would do
# a whole model.
PIECE = 8192


@torch.no_grad()
def captured_step(optimizer: torch.optim.Optimizer) -> None:
    """The same as `optimizer.step()`, if its state exists and its weights have gradients."""
    if isinstance(optimizer, HybridMuon):
        optimizer.step()
    else:
        _adam_step(optimizer)


def _adam_step(optimizer: torch.optim.Optimizer) -> None:
    """With fused Adam or AdamW."""
    for group in optimizer.param_groups:
        states = [optimizer.state[p] for p in group["params"]]
        torch._foreach_add_([state["step"] for state in states], 1)
        weights, gradients, means, squares, steps = _columns(
            (*row, state["step"])
            for p, state in zip(group["params"], states, strict=True)
            for row in _pieces((p, p.grad, state["exp_avg"], state["exp_avg_sq"]))
        )
        update: Any = torch._fused_adamw_ if isinstance(optimizer, torch.optim.AdamW) else torch._fused_adam_
        beta1, beta2 = group["betas"]
        update(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def _pieces(alike: Sequence[torch.Tensor]) -> Iterable[tuple[torch.Tensor, ...]]:
    whole = tuple(tensor.detach() for tensor in alike)
    if all(tensor.is_contiguous() for tensor in whole):
        return zip(*(tensor.view(-1).split(PIECE) for tensor in whole), strict=True)
    return [whole]


def _columns(rows: Iterable[tuple[torch.Tensor, ...]]) -> list[list[torch.Tensor]]:
    return [list(column) for column in zip(*rows, strict=True)]
