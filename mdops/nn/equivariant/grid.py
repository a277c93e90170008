"""Products of functions on the sphere or on the rotations, which mix degrees and are equivariant.

A row of coefficients c_lm is the function sum c_lm Y_lm of the sphere; with K frames, a row c_lmk is the function
sum c_lmk D^l_km of the rotations. Two such functions are multiplied point by point and projected back. The points
integrate a product of three functions exactly, so that all grids that do so give the same results.
"""

import copy
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from mdops.errors import InputError
from mdops.nn.equivariant.checks import check_all_degrees, check_degrees, check_rows
from mdops.nn.equivariant.gate import swiglu
from mdops.nn.equivariant.indices import coefficients, degree_table, of_each, places
from mdops.nn.equivariant.linear import (
    ChannelLinear,
    DegreeLinear,
    GroupLinear,
    draw_uniform,
    plus_scalar,
    product_of_degrees,
    product_of_each,
    zeros,
)
from mdops.nn.equivariant.rotation import spherical_harmonics, wigner_rows
from mdops.ops import EdgeIndex, edge_weighted_sum, grid_product, linear, scalar_gate
from mdops.ops.grid_product import multiplies_at_points

_RESIDUAL = 1e-3  # the initial scale of a grid's output


def _sums_of_products(a: torch.Tensor, b: torch.Tensor, count: int) -> torch.Tensor:
    """(N, W), a times b, summed over each `count` rows of (N count, W)."""
    rows = torch.arange(a.shape[0] + 1, dtype=torch.int32, device=a.device)
    own, of = rows[:-1], rows[:-1] // count
    return edge_weighted_sum(
        a, b, EdgeIndex(own, None, rows), EdgeIndex(of, None, rows[::count].contiguous())
    )


def frame_orders(kmax: int) -> list[int]:
    """The k of each frame: 0, -1, 1, -2, 2, ..."""
    return [0, *(sign * k for k in range(1, kmax + 1) for sign in (-1, 1))]


def _polar_points(lmax: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles (alpha, beta) and weights with sum 1, for functions up to degree 3 lmax."""
    cosines, weights = np.polynomial.legendre.leggauss(3 * lmax // 2 + 1)
    turns = 3 * lmax + 1
    alpha = np.tile(np.arange(turns) * (2 * math.pi / turns), len(cosines))
    return alpha, np.repeat(np.arccos(cosines), turns), np.repeat(weights, turns) / (2 * turns)


@lru_cache(maxsize=64)
def sphere_grid(
    lmax: int, chosen: tuple[tuple[int, int], ...], mmax: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """From coefficients to points, (G, D), and back, (D, G), float64.

    Both matrices multiply degrees above mmax by sqrt((2l + 1) / (2 mmax + 1)).
    """
    alpha, beta, weights = _polar_points(lmax)
    x, y = np.sin(beta) * np.cos(alpha), np.sin(beta) * np.sin(alpha)
    points = torch.from_numpy(np.stack([x, y, np.cos(beta)], 1))
    harmonics = spherical_harmonics(points, lmax)[:, places(chosen)]
    sizes = torch.tensor([2 * ell + 1 for ell, _ in chosen], dtype=torch.float64)
    more = torch.where(sizes > 2 * mmax + 1, sizes / (2 * mmax + 1), 1.0).sqrt()
    scale = math.sqrt(lmax + 1)
    back = harmonics * torch.from_numpy(weights)[:, None] * sizes * more * scale
    return harmonics * more / scale, back.T.contiguous()


@lru_cache(maxsize=64)
def rotation_grid(
    lmax: int, chosen: tuple[tuple[int, int], ...], kmax: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """From coefficients with frames to points, (G, D K), and back, (D K, G), float64. Frames |k| > l are zero."""
    alpha, beta, weights = _polar_points(lmax)
    turns = 3 * kmax + 1
    gamma = np.tile(np.arange(turns) * (2 * math.pi / turns), len(alpha))
    alpha, beta = (np.repeat(angle, turns) / 2 for angle in (alpha, beta))
    gamma = gamma / 2
    # Rotations about z by alpha, about y by beta, about z by gamma.
    quaternions = np.stack(
        [
            np.cos(beta) * np.cos(alpha + gamma),
            np.sin(beta) * np.sin(alpha - gamma),
            np.sin(beta) * np.cos(alpha - gamma),
            np.cos(beta) * np.sin(alpha + gamma),
        ],
        1,
    )
    matrices = wigner_rows(torch.from_numpy(quaternions), lmax)
    frames = frame_orders(kmax)
    there = torch.tensor([[abs(k) <= ell for k in frames] for ell, _ in chosen])
    rows = torch.tensor(
        [[ell * ell + ell + (k if abs(k) <= ell else 0) for k in frames] for ell, _ in chosen]
    )
    columns = torch.tensor(places(chosen))[:, None].expand_as(rows)
    values = torch.where(there, matrices[:, rows, columns], 0.0)
    sizes = torch.tensor([2 * ell + 1 for ell, _ in chosen], dtype=torch.float64)[:, None]
    counted = torch.from_numpy(np.repeat(weights, turns) / turns)
    back = values * sizes * counted[:, None, None]
    return values.flatten(1), back.flatten(1).T.contiguous()


class FrameLinear(nn.Module):
    """x_lm W_l of rows (N, D, F, inputs), from or to rows with frames."""

    _table: torch.Tensor

    def __init__(self, chosen: Sequence[tuple[int, int]], inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = zeros(max(ell for ell, _ in chosen) + 1, inputs, outputs)
        self.register_buffer("_table", degree_table(chosen), persistent=False)
        self._has_all = list(chosen) == coefficients(len(self.weight) - 1)

    @property
    def of_each(self) -> torch.Tensor:
        """(D, inputs, outputs)."""
        return of_each(self.weight, self._table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[2] == 1 and self._has_all:
            return product_of_degrees(x.squeeze(2), self.weight, self._table)[:, :, None]
        weight = self.of_each
        if x.shape[2] == 1:
            return product_of_each(x.squeeze(2), weight)[:, :, None]
        return torch.einsum("ndfi,dio->ndfo", x, weight)

    def reset(self, random: np.random.Generator) -> None:
        draw_uniform(self.weight, random, self.weight.shape[1])


class _GridMix(nn.Module):
    """Base of the layers around the product of two functions, which mix its channels."""

    def __init__(self, channels: int, inputs: int, hidden: int) -> None:
        super().__init__()
        self.left_proj = ChannelLinear(inputs, hidden)
        self.right_proj = ChannelLinear(inputs, hidden)
        self.out_proj = ChannelLinear(channels, channels)

    def sides(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The two functions to multiply, linear in two (..., C)."""
        return self.left_proj(left), self.right_proj(right)


class GridMLP(_GridMix):
    """Mixes channels before and after the product, which has twice as many."""

    def __init__(self, channels: int, both: bool) -> None:
        """`both`: each of the two functions depends on both inputs."""
        super().__init__(channels, channels * (1 + both), 2 * channels)
        self.both, self.out_proj = both, ChannelLinear(2 * channels, channels)

    def sides(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.both:
            left = right = torch.cat([left, right], -1)
        return super().sides(left, right)

    def forward(
        self, left: torch.Tensor, right: torch.Tensor, grid: "GridNet", scalars: torch.Tensor
    ) -> torch.Tensor:
        """left, right: from `sides`."""
        return self.out_proj(grid.product(left, right))


class GridBranch(_GridMix):
    """A mean of several products, weighted by a softmax of the scalars."""

    def __init__(self, channels: int, branches: int) -> None:
        super().__init__(channels, channels, branches * channels)
        self.branches, self.router = branches, ChannelLinear(2 * channels, branches)

    def forward(
        self, left: torch.Tensor, right: torch.Tensor, grid: "GridNet", scalars: torch.Tensor
    ) -> torch.Tensor:
        """left, right: from `sides`."""
        if self.branches == 1:  # the softmax of one logit is 1
            return self.out_proj(grid.product(left, right))
        weights = self.router(scalars).softmax(-1)
        product = (grid.to_points(left) * grid.to_points(right)).unflatten(-1, (self.branches, -1))
        return self.out_proj(grid.from_points((product * weights[:, None, :, :, None]).sum(3)))


class ProductWeights(NamedTuple):
    """A linear layer by degree times the mixing of channels before a product of functions: weights (L + 1, inputs, K
    C') of both functions, and (inputs, 2 C) of the scalars."""

    left: torch.Tensor
    right: torch.Tensor
    scalars: torch.Tensor


class GridNet(nn.Module):
    """A product of two functions on a grid, gated by their scalars, and a silu product of the scalars added.

    Rows are (N, D, F, C), with K frames (N, D, F, K C), frame after frame.
    """

    def __init__(
        self,
        chosen: Sequence[tuple[int, int]],
        channels: int,
        *,
        groups: int = 1,
        kmax: int | None = None,
        mmax: int | None = None,
        kind: str = "glu",
        branches: int = 1,
        crossed: bool = False,
        bias: bool = False,
    ) -> None:
        """Args:
        chosen: the (l, m) of the coefficients, (0, 0) first.
        kmax: frames up to |k| = kmax, on the rotations; None: on the sphere.
        mmax: of a sphere's grid whose coefficients end there.
        kind: "glu", the product alone; "mlp" or "branch", with what stands around it.
        crossed: the functions are two arguments, without frames; else the two halves of one, with them.

        Raises:
            InputError: coefficients, a kmax or a kind that there are not.
        """
        super().__init__()
        check_all_degrees("GridNet", chosen)
        chosen, lmax = tuple(chosen), max(ell for ell, _ in chosen)
        if kmax is not None:
            check_degrees("GridNet", lmax, kmax, "kmax")
        if kind not in ("glu", "mlp", "branch"):
            raise InputError(f"GridNet: kind is {kind!r}, expected 'glu', 'mlp' or 'branch'")
        if kmax is None:
            grids = sphere_grid(lmax, chosen, lmax if mmax is None else mmax)
        else:
            grids = rotation_grid(lmax, chosen, kmax)
        self.register_buffer("_to", grids[0].clone(), persistent=False)
        self.register_buffer(
            "_back", grids[1].T.clone(memory_format=torch.contiguous_format), persistent=False
        )
        self._by_angles = kmax == 1 and lmax in (2, 3, 4) and chosen == tuple(coefficients(lmax))
        self.frames = 1 if kmax is None else len(frame_orders(kmax))
        norms = (grids[0].square() * grids[1][0, :, None]).sum(0).view(len(chosen), -1)
        first = [next(d for d, (ell, _) in enumerate(chosen) if ell == degree) for degree in range(lmax + 1)]
        self.register_buffer("_norms", norms[first], persistent=False)
        self.count, self.channels, self.groups, self.crossed = len(chosen), channels, groups, crossed
        self.scalar_gate = GroupLinear(2 * channels, channels, groups, bias, deviation=0.01)
        if kind == "mlp":
            self.grid_op: GridMLP | GridBranch | None = GridMLP(channels, not crossed)
        else:
            self.grid_op = GridBranch(channels, branches) if kind == "branch" else None
        self.frame_expand = self.frame_contract = self.residual_scale = None
        if crossed:
            self.residual_scale = nn.Parameter(torch.full((groups, channels), _RESIDUAL, dtype=torch.float64))
        if crossed and kmax is not None:
            self.frame_expand = FrameLinear(chosen, channels, self.frames * channels)
            self.frame_contract = FrameLinear(chosen, self.frames * channels, channels)

    _to: torch.Tensor  # (G, D K)
    _back: torch.Tensor  # (G, D K): contribution of a point
    _norms: torch.Tensor  # (L + 1, K): a squared coefficient's contribution to the product's first one

    def to_points(self, x: torch.Tensor) -> torch.Tensor:
        """(N, D, F, K, C) to (N, G, F, C)."""
        return torch.matmul(self._to, self._rows(x)).unflatten(2, x.shape[2::2])

    def from_points(self, x: torch.Tensor) -> torch.Tensor:
        """(N, G, F, C) to (N, D, F, K, C)."""
        return self._coefficients(torch.matmul(self._back.mT, x.flatten(2)), x.shape[2])

    def product(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The product of two functions (N, D, F, K, C)."""
        if not (self._by_angles or multiplies_at_points(left, *self._to.shape)):
            return self.from_points(self.to_points(left) * self.to_points(right))
        found = grid_product(
            self._to, self._to, self._back, self._rows(left), self._rows(right), self._by_angles
        )
        return self._coefficients(found, left.shape[2])

    @staticmethod
    def _rows(x: torch.Tensor) -> torch.Tensor:
        """(N, D, F, K, C) to (N, D K, F C)."""
        return x.transpose(2, 3).flatten(3).flatten(1, 2)

    def _coefficients(self, found: torch.Tensor, groups: int) -> torch.Tensor:
        """(N, D K, F C) to (N, D, F, K, C)."""
        return found.unflatten(2, (groups, -1)).unflatten(1, (-1, self.frames)).transpose(2, 3)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """(N, D, F, 2 K C) to (N, D, F, K C); if `crossed`, two of (N, D, F, C) to one."""
        if self.crossed is (other is None):
            raise InputError(f"GridNet: expected {'two arguments' if self.crossed else 'one argument'}")
        width = self.channels if self.crossed else 2 * self.frames * self.channels
        for rows in (x,) if other is None else (x, other):
            check_rows("GridNet", rows, (self.count, self.groups, width), self.scalar_gate.weight)
        pair = x.chunk(2, -1) if other is None else (x, other)
        scalars = torch.cat([one[:, 0, :, : self.channels] for one in pair], -1)
        if self.frame_expand is not None:
            pair = self.frame_expand(pair[0]), self.frame_expand(pair[1])
        left, right = (one.unflatten(-1, (self.frames, self.channels)) for one in pair)
        if self.grid_op is not None:
            left, right = self.grid_op.sides(left, right)
        return self._found(left, right, scalars)

    def of_product(self, x: torch.Tensor, product: DegreeLinear, weights: ProductWeights) -> torch.Tensor:
        """self(product(x)), for rows (N, D, 1, inputs), one group, a product without bias, and no `crossed`. With the
        `weights_of` the product, the array between the two is not computed."""
        left, right = (
            product.product(x.squeeze(2), own).unflatten(-1, (1, self.frames, -1)) for own in weights[:2]
        )
        return self._found(left, right, self._scalars_of(x, weights))

    def weights_of(self, product: DegreeLinear, counted: bool = False) -> ProductWeights:
        """The weights of a linear layer by degree, times the mixing of channels before the product of functions.

        Args:
            counted: whether the left ones are times the factors of the coefficients in the product's scalars.
        """
        weight = product.weight.unflatten(2, (2, self.frames, self.channels))
        left, right = weight.unbind(2) if self.grid_op is None else self.grid_op.sides(*weight.unbind(2))
        left = left * self._norms[:, None, :, None] if counted else left
        return ProductWeights(left.flatten(2), right.flatten(2), weight[0, :, :, 0].flatten(1))

    @staticmethod
    def _scalars_of(x: torch.Tensor, weights: ProductWeights) -> torch.Tensor:
        """(N, 1, 2 C)."""
        return linear(x[:, 0].squeeze(1), weights.scalars)[:, None]

    @property
    def is_one_product(self) -> bool:
        """Whether it has one group of channels, and one product of functions."""
        return self.groups == 1 and self.has_one_product

    @property
    def has_one_product(self) -> bool:
        """Whether it has one product of functions per group of channels."""
        return not (isinstance(self.grid_op, GridBranch) and self.grid_op.branches > 1)

    @torch.no_grad()
    def in_one_group(self) -> "GridNet":
        """The same net of one product, with all channels in one group and zero weights between the old groups. With
        groups, simulations would transpose arrays for each product."""
        wide, groups = copy.deepcopy(self), torch.eye(self.groups).to(self.scalar_gate.weight)

        def widen(weight: torch.Tensor, parts: int = 1, of: int = 1) -> nn.Parameter:
            """(.., parts I, of O) to (.., parts F I, of F O)."""
            each = weight.unflatten(-1, (of, -1)).unflatten(-3, (parts, -1))
            found = torch.einsum("...piqo,fg->...pfiqgo", each, groups)
            return nn.Parameter(found.flatten(-6, -4).flatten(-3))

        wide.groups, wide.channels = 1, self.groups * self.channels
        gate = self.scalar_gate.weight.view(2, self.channels, self.groups, self.channels)
        wide.scalar_gate.weight = nn.Parameter(
            torch.einsum("pifo,fg->pfigo", gate, groups).flatten(0, 2).flatten(1)
        )
        wide.scalar_gate.inputs, wide.scalar_gate.outputs = 2 * wide.channels, wide.channels
        wide.scalar_gate.groups = 1
        if (mix := wide.grid_op) is not None:
            inputs = 2 if isinstance(mix, GridMLP) and mix.both else 1
            for own, parts in ((mix.left_proj, inputs), (mix.right_proj, inputs), (mix.out_proj, 1)):
                own.weight = widen(own.weight, parts)
        if wide.frame_expand is not None and wide.frame_contract is not None:
            wide.frame_expand.weight = widen(wide.frame_expand.weight, of=self.frames)
            wide.frame_contract.weight = widen(wide.frame_contract.weight, parts=self.frames)
        if wide.residual_scale is not None:
            wide.residual_scale = nn.Parameter(wide.residual_scale.view(1, -1))
        return wide.requires_grad_(False)

    @property
    def needs_points(self) -> bool:
        """Whether the product's scalars need points, not just sums of products of coefficients."""
        return self.crossed or not self.is_one_product

    @property
    def constants(self) -> tuple[torch.Tensor, torch.Tensor, bool, torch.Tensor | None, torch.Tensor]:
        """For one product: arguments of `grid_product`, the mixing of channels after it, and the gates' weight."""
        mixed = None if self.grid_op is None else self.grid_op.out_proj.weight
        return self._to, self._back, self._by_angles, mixed, self.scalar_gate.weight

    def crossed_weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For one product of two arguments with frames: a matrix per coefficient to those of both functions, (D, C,
        K C'), and back, (D, K C, C)."""
        assert self.frame_expand and self.frame_contract and self.residual_scale is not None
        left = right = self.frame_expand.of_each
        if self.grid_op is not None:
            sides = left.unflatten(2, (self.frames, -1))
            left, right = (side.flatten(2) for side in self.grid_op.sides(sides, sides))
        return left, right, self.frame_contract.of_each * self.residual_scale

    def scalars_of_product(
        self, x: torch.Tensor, product: DegreeLinear, weights: ProductWeights
    ) -> torch.Tensor:
        """(N, C), the scalars of the first frame of `of_product`, without points; with counted `weights_of`."""
        scalars = self._scalars_of(x, weights)
        a, b = (product.product(x.squeeze(2), own).flatten(0, 1) for own in weights[:2])
        found = _sums_of_products(a, b, x.shape[1]).unflatten(1, (self.frames, -1)).sum(1)
        if self.grid_op is not None:
            found = self.grid_op.out_proj(found)
        return scalar_gate(found[:, None], self.scalar_gate(scalars)[:, 0], scalars[:, 0])[:, 0]

    def _found(self, left: torch.Tensor, right: torch.Tensor, scalars: torch.Tensor) -> torch.Tensor:
        """The gated product of two functions (N, D, F, K, C'), with the inputs' scalars (N, F, 2 C)."""
        if self.grid_op is None:
            product = self.product(left, right)
        else:
            product = self.grid_op(left, right, self, scalars)
        gates = self.scalar_gate(scalars)
        if self.groups == 1:
            rows = scalar_gate(product.flatten(1, 3), gates[:, 0], scalars[:, 0])
            found = rows.flatten(1).unflatten(1, (-1, 1, self.frames * self.channels))
        else:
            found = (product * gates.sigmoid()[:, None, :, None]).flatten(3)
            added = nn.functional.pad(swiglu(scalars), (0, found.shape[-1] - self.channels))
            found = plus_scalar(found, added[:, None])
        if self.frame_contract is not None:
            found = self.frame_contract(found)
        return found if self.residual_scale is None else found * self.residual_scale
