"""The optimizers HybridMuon and AdaMuon: orthogonal steps of matrices, and Adam for all other weights."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

# Iterations X <- a X + (b X X^T + c (X X^T)^2) X towards the orthogonal matrix nearest to X: eight bring singular
# values near 1, and two of Newton's keep them there. AdaMuon has the first five.
_ITERATIONS = [(3.4445, -4.7750, 2.0315)] * 8 + [(2.0, -1.5, 0.5)] * 2
_FEW = 5
# The polynomials of N. Amsel et al., "The Polar Express", arXiv:2505.16932, for singular values up to 1.05 times as
# large, which 16 bits allow.
_ROOM = 1.05
_POLYNOMIALS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
]
_RESTART = 2  # before this polynomial, the matrix and its Gram matrix are recomputed
_LEAST_NORM, _LEAST_PRODUCT, _LEAST_SIZE = 1e-7, 1e-12, 1e-8
_RMS = 0.2  # of the numbers of a step of AdaMuon, where s and the rate are 1
# The damping of a step if a gradient disagrees with the mean of gradients (arXiv:2602.15322, without random numbers):
# scores last for about ten steps, and the least factor is a tenth.
_TEMPERATURE, _MEMORY, _LEAST = 2.0, 0.9, 0.1
# The most zeros to pad matrices with so that a GPU handles them together. To move so many takes as long as a launch,
# which dominates steps of small matrices.
_PADDING = 2**20
_ROWS = "rows"  # AdaMuon's mode: all axes but the first are columns


class HybridMuon(torch.optim.Optimizer):
    """DeePMD-kit's optimizer of that name (K. Jordan, "Muon"; arXiv:2502.16982).

    Matrices W (m, n) with gradients G: M <- mu M + (1 - mu) G; W <- (1 - rate decay) W - rate s d U, with U the
    orthogonal matrix next to mu M + (1 - mu) G, s = coefficient sqrt(max(m, n)), and a damping d between 0.1 and 1, of
    the cosine between M and G. Other weights take Adam's steps, those with two axes or more with AdamW's decay. Axes
    of length 1 do not count.

    A step stays on the weights' device and needs nothing from the host: a CUDA graph can capture it.
    """

    _adam_eps = 1e-20

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
            tables: the parameters that are no matrices of layers: Adam updates them, without decay.
            decayed: those that Adam updates with decay.
            lr_adjust: above 0 Adam's rate is the rate over it, and s = sqrt(max(1, m/n)).
            mode: of weights with more axes, "slice": the last two are matrices; "flat": all but the last are rows of
                one; "2d": Adam updates them, with decay.
            gram: whether U of matrices that are not square is computed by polynomials of M M^T, in float16; others
                use `_ITERATIONS` in bfloat16.
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
        self._made: dict[tuple[Any, ...], Any] = {}
        for group in self.param_groups:  # CUDA graphs cannot make them
            _ = (
                self._stacks(group["params"], group)
                if group["way"] == "muon"
                else self._owners(group["params"])
            )

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of the weights with gradients."""
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
        taken, owners = torch.stack(steps), self._owners(weights)
        of_square, of_mean = (1 - beta2**taken).float(), (rate / (1 - beta1**taken)).float()
        mean, square = (_flat(own) for own in (means, squares))
        size = (square / of_square.index_select(0, owners)).sqrt_().add_(self._adam_eps)
        _subtract(weights, mean / size * of_mean.index_select(0, owners))

    def _owners(self, weights: Sequence[torch.nn.Parameter]) -> torch.Tensor:
        """The index of the weight of each number, in order."""

        def make() -> torch.Tensor:
            sizes = torch.tensor([p.numel() for p in weights])
            return torch.repeat_interleave(sizes).to(weights[0].device)

        found: torch.Tensor = self._kept("owners", weights, make)
        return found

    def _kept(self, name: str, weights: Sequence[torch.nn.Parameter], make: Callable[[], Any]) -> Any:
        """The result of `make`, once for these weights and their device."""
        key = name, weights[0].device, *map(id, weights)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _matrix_state(self, p: torch.nn.Parameter, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Of a weight before its first step, besides the mean of gradients."""
        if not group["magma"]:
            return {}
        return {"score": torch.zeros(_view(p, group["mode"])[0], dtype=torch.float32, device=p.device)}

    def _direction(
        self, stack: "_Stack", own: Sequence[torch.nn.Parameter], gradient: torch.Tensor, mean: torch.Tensor,
        group: dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        """(B, m, n), the step of a stack of weights for a rate of 1; updates their states."""
        found = _orthogonal(torch.lerp(gradient, mean, group["momentum"]), stack.gram)
        found = (found.to(stack.lengths.dtype) * stack.lengths).to(found.dtype)
        if group["magma"]:
            damping = _damping([self.state[p]["score"] for p in own], gradient, mean)
            found = found * damping.view(-1, 1, 1).to(found.dtype)
        return found

    def _muon(self, weights: Sequence[torch.nn.Parameter], group: dict[str, Any]) -> None:
        rate = group["lr"]
        for p in weights:
            if not self.state[p]:
                self.state[p].update(momentum_buffer=torch.zeros_like(p), **self._matrix_state(p, group))
        gradients = [p.grad for p in weights if p.grad is not None]
        means = [self.state[p]["momentum_buffer"] for p in weights]
        if group["weight_decay"] > 0:
            torch._foreach_mul_(list(weights), 1 - rate * group["weight_decay"])
        torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
        for stack in self._stacks(weights, group):
            own = [weights[k] for k in stack.owners]
            gradient, mean = (stack.of([all_of[k] for k in stack.owners]) for all_of in (gradients, means))
            found = self._direction(stack, own, gradient, mean, group)
            _subtract(own, (found.to(own[0].dtype) * rate).view(-1).index_select(0, stack.back))

    def _stacks(self, weights: Sequence[torch.nn.Parameter], group: dict[str, Any]) -> "list[_Stack]":
        """The matrices to stack: on a GPU all, as far as `_PADDING` allows, else those of one shape."""
        most = _PADDING if weights[0].is_cuda else 0
        found: list[_Stack] = self._kept("stacks", weights, lambda: _stacked(weights, group, most))
        return found


class AdaMuon(HybridMuon):
    """DeePMD-kit's optimizer of that name (arXiv:2507.11005).

    Matrices W (m, n) with gradients G: M <- mu M + (1 - mu) G; W <- (1 - rate decay) W - rate 0.2 sqrt(m n) s D / |D|,
    with D = U / (sqrt(V) + 1e-8), V <- mu V + (1 - mu) U^2, U next to orthogonal by five iterations from the signs of
    mu M + (1 - mu) G, and s = sqrt(max(1, m/n)), or coefficient sqrt(max(m, n)) if `lr_adjust` is 0. Of weights with
    two axes or more the first has the rows. Other weights take Adam's steps, without decay.
    """

    _adam_eps = 1e-8

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        lr: float | torch.Tensor,
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.001,
        lr_adjust: float = 10.0,
        lr_adjust_coeff: float = 0.2,
    ) -> None:
        """Arguments as of `HybridMuon`."""
        super().__init__(
            parameters, lr, momentum=momentum, betas=betas, weight_decay=weight_decay, lr_adjust=lr_adjust,
            lr_adjust_coeff=lr_adjust_coeff, mode=_ROWS, gram=False, magma=False,
        )  # fmt: skip

    def _matrix_state(self, p: torch.nn.Parameter, group: dict[str, Any]) -> dict[str, torch.Tensor]:
        return {"square": torch.zeros_like(p, dtype=torch.float32)}

    def _direction(
        self, stack: "_Stack", own: Sequence[torch.nn.Parameter], gradient: torch.Tensor, mean: torch.Tensor,
        group: dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        mu, kept = group["momentum"], [self.state[p]["square"] for p in own]
        signs = torch.lerp(gradient, mean, mu).sign()
        found = _by_iterations(signs.bfloat16(), _ITERATIONS[:_FEW]).float()
        square = stack.of(kept).mul_(mu).addcmul_(found, found, value=1 - mu)
        numbers = square.view(-1).index_select(0, stack.back).split([p.numel() for p in own])
        torch._foreach_copy_(kept, [new.view(k.shape) for new, k in zip(numbers, kept, strict=True)])
        found = found / square.sqrt_().add_(_LEAST_SIZE)
        return found / (found.norm(dim=(1, 2), keepdim=True) + _LEAST_SIZE) * stack.lengths


class _Stack(NamedTuple):
    """Matrices (B, m, n), m up to n; smaller ones are padded with zeros.

    Attributes:
        owners: the indices of their weights.
        gram: whether Gram matrices make them orthogonal.
        places: (B, m, n) int32, the index of a number among those of the weights in order; behind all: a zero.
        back: (numbers,) int32, the index of a number of the weights among the matrices.
        lengths: (B, 1, 1), s, of AdaMuon with 0.2 sqrt(m n).
        zero: (1,).
    """

    owners: list[int]
    gram: bool
    places: torch.Tensor
    back: torch.Tensor
    lengths: torch.Tensor
    zero: torch.Tensor

    def of(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """(B, m, n), from tensors in the weights' shapes."""
        flat = torch.cat([*(value.reshape(-1) for value in values), self.zero.to(values[0].dtype)])
        return flat.index_select(0, self.places.view(-1)).view(self.places.shape)


def _stacked(weights: Sequence[torch.Tensor], group: dict[str, Any], most: int) -> list[_Stack]:
    """Stacks with at most so many zeros. Joins the shapes that need the fewest."""
    shapes = [_view(p, group["mode"]) for p in weights]
    alike: dict[tuple[Any, ...], list[int]] = {}
    for k, (_, rows, columns) in enumerate(shapes):
        sides = max(rows, columns), min(rows, columns)
        alike.setdefault((weights[k].dtype, group["gram"] and rows != columns, sides), []).append(k)
    chosen: list[tuple[tuple[Any, ...], list[int]]] = []
    for (*kind, _), owners in sorted(alike.items(), key=lambda one: (str(one[0][0]), one[0][1:])):
        if chosen and chosen[-1][0] == tuple(kind) and _zeros(shapes, chosen[-1][1] + owners) <= most:
            chosen[-1][1].extend(owners)
        else:
            chosen.append((tuple(kind), list(owners)))
    return [_stack(weights, shapes, sorted(owners), kind[1], group) for kind, owners in chosen]


def _sides(shapes: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
    """The largest of the short sides, and of the long ones."""
    return max(min(shape[1:]) for shape in shapes), max(max(shape[1:]) for shape in shapes)


def _zeros(shapes: Sequence[tuple[int, int, int]], owners: Sequence[int]) -> int:
    """Their number in a stack of these weights."""
    own = [shapes[k] for k in owners]
    return sum(shape[0] for shape in own) * math.prod(_sides(own)) - sum(map(math.prod, own))


def _stack(
    weights: Sequence[torch.Tensor],
    shapes: Sequence[tuple[int, int, int]],
    owners: list[int],
    gram: bool,
    group: dict[str, Any],
) -> _Stack:
    own = [shapes[k] for k in owners]
    count, total = sum(shape[0] for shape in own), sum(map(math.prod, own))
    places = torch.full((count, *_sides(own)), total, dtype=torch.int32)
    matrix = at = 0
    for number, rows, columns in own:
        numbers = torch.arange(at, at + number * rows * columns, dtype=torch.int32).view(
            number, rows, columns
        )
        numbers = numbers if rows <= columns else numbers.mT
        places[matrix : matrix + number, : numbers.shape[1], : numbers.shape[2]] = numbers
        matrix, at = matrix + number, at + number * rows * columns
    back = torch.empty(total + 1, dtype=torch.int32)
    back[places.view(-1).long()] = torch.arange(places.numel(), dtype=torch.int32)
    p = weights[owners[0]]
    lengths = torch.tensor([_length(*shape[1:], group) for shape in own for _ in range(shape[0])])
    dtype = p.dtype if gram else torch.float32
    return _Stack(
        owners,
        gram,
        places.to(p.device),
        back[:total].to(p.device),
        lengths.to(p.device, dtype).view(-1, 1, 1),
        p.new_zeros(1, requires_grad=False),
    )


def _flat(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in values])


def _subtract(weights: Sequence[torch.nn.Parameter], numbers: torch.Tensor) -> None:
    """Subtracts numbers from all weights in order."""
    parts = numbers.split([p.numel() for p in weights])
    torch._foreach_sub_(list(weights), [part.view(p.shape) for part, p in zip(parts, weights, strict=True)])


def _damping(scores: Sequence[torch.Tensor], gradient: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """(B,), of each matrix. Scores are stored as differences from 1/2, so that a new one is zero."""
    g, m = (x.flatten(1).float() for x in (gradient, mean))
    cosine = (g * m).sum(1) / (g.norm(dim=1) * m.norm(dim=1)).clamp(min=_LEAST_PRODUCT)
    low = 1 / (1 + math.exp(1 / _TEMPERATURE))
    found = (torch.sigmoid(cosine.clamp(-1, 1) / _TEMPERATURE) - low) / (1 - 2 * low)
    score = torch.cat(list(scores)).lerp_(found.clamp(0, 1) - 0.5, 1 - _MEMORY)
    torch._foreach_copy_(list(scores), score.split([len(own) for own in scores]))
    return _LEAST + (1 - _LEAST) * (score + 0.5)


def _way(p: torch.Tensor, mode: str) -> str:
    """A weight's update."""
    if mode == _ROWS:
        return "muon" if p.dim() > 1 else "adam"
    axes = sum(n != 1 for n in p.shape)
    if axes < 2:
        return "adam"
    return "adamw" if axes > 2 and mode == "2d" else "muon"


def _view(p: torch.Tensor, mode: str) -> tuple[int, int, int]:
    """The number of a weight's matrices, their rows and columns."""
    if mode == _ROWS:
        return 1, p.shape[0], math.prod(p.shape[1:])
    axes = [n for n in p.shape if n != 1]
    if mode == "flat":
        return 1, math.prod(axes[:-1]), axes[-1]
    return math.prod(axes[:-2]), axes[-2], axes[-1]


def _length(rows: int, columns: int, group: dict[str, Any]) -> float:
    """s, of AdaMuon with 0.2 sqrt(m n)."""
    unit = _RMS * math.sqrt(rows * columns) if group["mode"] == _ROWS else 1.0
    if group["lr_adjust"] > 0:
        return unit * math.sqrt(max(1.0, rows / columns))
    found: float = unit * group["coefficient"] * math.sqrt(max(rows, columns))
    return found


def _orthogonal(x: torch.Tensor, gram: bool) -> torch.Tensor:
    """(B, m, n), m up to n: the orthogonal matrices next to x, of its dtype if `gram`, else bfloat16."""
    return _by_gram(x.float()).to(x.dtype) if gram else _by_iterations(x.bfloat16(), _ITERATIONS)


def _by_iterations(x: torch.Tensor, iterations: Iterable[tuple[float, float, float]]) -> torch.Tensor:
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_LEAST_NORM)
    for a, b, c in iterations:
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
