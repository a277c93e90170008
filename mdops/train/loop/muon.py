"""The optimizer HybridMuon: matrices are changed as far in every direction, and all other weights by Adam."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

# Iterations X <- a X + (b X X^T + c (X X^T)^2) X towards the orthogonal matrix that is next to X: eight that bring
# singular values near 1, and two of Newton's that keep them there.
_ITERATIONS = [(3.4445, -4.7750, 2.0315)] * 8 + [(2.0, -1.5, 0.5)] * 2
# The polynomials of N. Amsel et al., "The Polar Express", arXiv:2505.16932, for singular values that are 1.05 times as
# large, as 16 bits may make them.
_ROOM = 1.05
_POLYNOMIALS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]
_RESTART = 2  # the polynomial before which the matrix is made, and its Gram matrix anew
_LEAST_NORM, _ADAM_EPS, _LEAST_PRODUCT = 1e-7, 1e-20, 1e-12
# How a step is damped where a gradient does not go with the mean of gradients (arXiv:2602.15322, in a form without
# chance): scores are kept for ten steps, and the least factor is a tenth.
_TEMPERATURE, _MEMORY, _LEAST = 2.0, 0.9, 0.1
MODES = ("slice", "flat", "2d")


class HybridMuon(torch.optim.Optimizer):
    """DeePMD-kit's optimizer of that name (K. Jordan, "Muon"; arXiv:2502.16982).

    Matrices W (m, n) with gradients G: M <- mu M + (1 - mu) G; W <- (1 - rate decay) W - rate s d U, with U the
    orthogonal matrix next to mu M + (1 - mu) G, s = coefficient sqrt(max(m, n)), and a damping d between 0.1 and 1, of
    the cosine between M and G. Other weights take Adam's steps, those with two axes or more with AdamW's decay. Axes
    of length 1 do not count.

    What a step makes is on the weights' device, and needs nothing of the host: a CUDA graph can have it.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float | torch.Tensor,
        *,
        tables: Iterable[torch.nn.Parameter] = (),
        decayed: Iterable[torch.nn.Parameter] = (),
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.001,
        lr_adjust: float = 0.0,
        lr_adjust_coeff: float = 0.18,
        mode: str = "slice",
        gram: bool = True,
        magma: bool = True,
    ) -> None:
        """
        Args:
            tables: of the parameters those whose axes are not those of a product: Adam has them, without decay.
            decayed: those that Adam has with decay.
            lr_adjust: above 0 Adam's rate is the rate over it, and s = sqrt(max(1, m/n)).
            mode: of weights with more axes, "slice": the last two are those of matrices; "flat": all but the last are
                rows of one; "2d": Adam has them, with decay.
            gram: whether U of matrices that are not square is made by polynomials of M M^T, in float16; that of
                others is by `_ITERATIONS` in bfloat16.
            magma: whether steps are damped.
        """
        groups: dict[str, list[torch.nn.Parameter]] = {"muon": [], "adamw": [], "adam": []}
        ways = {**{id(p): "adam" for p in tables}, **{id(p): "adamw" for p in decayed}}
        for p in parameters:
            groups[ways.get(id(p)) or _way(p, mode)].append(p)
        of_muon = {
            "momentum": momentum,
            "coefficient": lr_adjust_coeff,
            "mode": mode,
            "gram": gram,
            "magma": magma,
        }
        shared = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "lr_adjust": lr_adjust, **of_muon}
        super().__init__([{"params": own, "way": way} for way, own in groups.items() if own], shared)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step, of the weights that have gradients."""
        for group in self.param_groups:
            own = [p for p in group["params"] if p.grad is not None]
            if own and group["way"] == "muon":
                self._muon(own, group)
            elif own:
                self._adam(own, group)

    def _adam(self, weights: Sequence[torch.nn.Parameter], group: dict[str, Any]) -> None:
        rate, (beta1, beta2) = group["lr"], group["betas"]
        if group["lr_adjust"] > 0:
            rate = rate / group["lr_adjust"]
        if group["way"] == "adamw" and group["weight_decay"] > 0:
            torch._foreach_mul_(list(weights), 1 - rate * group["weight_decay"])
        for p in weights:
            if not self.state[p]:
                mean, square = (torch.zeros_like(p, dtype=torch.float32) for _ in range(2))
                step = torch.zeros((), dtype=torch.float64, device=p.device)
                self.state[p].update(exp_avg=mean, exp_avg_sq=square, step=step)
        gradients = [p.grad.float() for p in weights if p.grad is not None]
        means, squares, steps = (
            [self.state[p][name] for p in weights] for name in ("exp_avg", "exp_avg_sq", "step")
        )
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_lerp_(squares, torch._foreach_mul(gradients, gradients), 1 - beta2)
        torch._foreach_add_(steps, 1)
        for p, mean, square, step in zip(weights, means, squares, steps, strict=True):
            size = (square / (1 - beta2**step).float()).sqrt_().add_(_ADAM_EPS)
            p.sub_((mean / size * (rate / (1 - beta1**step)).float()).to(p.dtype))

    def _muon(self, weights: Sequence[torch.nn.Parameter], group: dict[str, Any]) -> None:
        rate, mu = group["lr"], group["momentum"]
        for p in weights:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
                if group["magma"]:
                    count = _view(p, group["mode"])[0]
                    self.state[p]["score"] = torch.zeros(count, dtype=torch.float32, device=p.device)
        gradients = [p.grad for p in weights if p.grad is not None]
        means = [self.state[p]["momentum_buffer"] for p in weights]
        if group["weight_decay"] > 0:
            torch._foreach_mul_(list(weights), 1 - rate * group["weight_decay"])
        torch._foreach_lerp_(means, gradients, 1 - mu)
        updates = torch._foreach_lerp(gradients, means, mu)
        alike: dict[tuple[int, int, torch.dtype], list[int]] = {}
        for k, p in enumerate(weights):
            alike.setdefault((*_view(p, group["mode"])[1:], p.dtype), []).append(k)
        for (rows, columns, _), places in alike.items():
            joined = torch.cat([updates[k].reshape(-1, rows, columns) for k in places])
            found = _orthogonal(joined, group["gram"] and rows != columns) * _length(rows, columns, group)
            if group["magma"]:
                damping = [self._damping(weights[k], gradients[k], means[k]) for k in places]
                found = found * torch.cat(damping).view(-1, 1, 1).to(found.dtype)
            counts = [_view(weights[k], group["mode"])[0] for k in places]
            for k, own in zip(places, found.split(counts), strict=True):
                weights[k].sub_(own.reshape(weights[k].shape).to(weights[k].dtype) * rate)

    def _damping(self, p: torch.nn.Parameter, gradient: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """(B,), of each matrix. The score that is kept is the difference from 1/2, so that a new one is zero."""
        score = self.state[p]["score"]
        g, m = (x.reshape(len(score), -1).float() for x in (gradient, mean))
        cosine = (g * m).sum(1) / (g.norm(dim=1) * m.norm(dim=1)).clamp(min=_LEAST_PRODUCT)
        low = 1 / (1 + math.exp(1 / _TEMPERATURE))
        found = (torch.sigmoid(cosine.clamp(-1, 1) / _TEMPERATURE) - low) / (1 - 2 * low)
        score.lerp_(found.clamp(0, 1) - 0.5, 1 - _MEMORY)
        return _LEAST + (1 - _LEAST) * (score + 0.5)


def _way(p: torch.Tensor, mode: str) -> str:
    """Who has a parameter."""
    axes = sum(n != 1 for n in p.shape)
    if axes < 2:
        return "adam"
    return "adamw" if axes > 2 and mode == "2d" else "muon"


def _view(p: torch.Tensor, mode: str) -> tuple[int, int, int]:
    """How many matrices a weight is, and their rows and columns."""
    axes = [n for n in p.shape if n != 1]
    if mode == "flat":
        return 1, math.prod(axes[:-1]), axes[-1]
    return math.prod(axes[:-2]), axes[-2], axes[-1]


def _length(rows: int, columns: int, group: dict[str, Any]) -> float:
    """s."""
    if group["lr_adjust"] > 0:
        return math.sqrt(max(1.0, rows / columns))
    found: float = group["coefficient"] * math.sqrt(max(rows, columns))
    return found


def _orthogonal(x: torch.Tensor, gram: bool) -> torch.Tensor:
    """(B, m, n): the orthogonal matrices next to x, of its dtype if `gram`, else bfloat16."""
    wide = x if x.shape[1] <= x.shape[2] else x.mT
    found = _by_gram(wide.float()).to(x.dtype) if gram else _by_iterations(wide.bfloat16())
    return found if wide is x else found.mT


def _by_iterations(x: torch.Tensor) -> torch.Tensor:
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_LEAST_NORM)
    for a, b, c in _ITERATIONS:
        r = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(r, r, r, beta=b, alpha=c), x, beta=a)
    return x


def _by_gram(x: torch.Tensor) -> torch.Tensor:
    """U = Q X, with Q the product of a + Z_k of the polynomials Z = b R + c R^2 of R = X X^T, which goes with X."""
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + _LEAST_NORM)).half()
    r, q = x @ x.mT, None
    one = torch.eye(r.shape[1], dtype=r.dtype, device=r.device)
    for k, (a, b, c) in enumerate(_POLYNOMIALS):
        a, b, c = a / _ROOM, b / _ROOM**3, c / _ROOM**5
        if k == _RESTART and q is not None:
            x = q @ x
            r, q = x @ x.mT, None
        z = torch.baddbmm(r, r, r, beta=b, alpha=c)
        q = z + a * one if q is None else torch.baddbmm(q, q, z, beta=a)
        if k + 1 not in (_RESTART, len(_POLYNOMIALS)):
            rz = torch.baddbmm(r, r, z, beta=a)
            r = torch.baddbmm(rz, z, rz, beta=a)
    assert q is not None
    return q @ x
