"""Attention layers in the few dimensions that their rows span (mathematics.md, "Layers in coordinates")."""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from mdops.models.dpa1 import AttentionLayer, SeAttenV2
from mdops.models.moments import TypeChoice
from mdops.ops.attention_layer import LANES, AttentionWeights
from mdops.ops.attention_moments import WIDTHS, JoinedLayer, has_moments
from mdops.ops.neighbor_attention import unit
from mdops.ops.switch_curve import switch_curve
from mdops.tables.spline import (
    TOLERANCE,
    SplineGrid,
    beside,
    coefficients,
    embed,
    in_cache,
    interpolate,
    looked_at,
    splines_beside,
    value_and_slope,
)
from mdops.tables.sum_tables import SumTables

# The longest part of q, k or v that may be left out, relative to the longest of them.
_TOLERANCE = {torch.float32: 3e-8, torch.float64: 1e-10}
_DISTANCES, _ROWS = 400, 40_000  # distances per pair of types, and most rows in all
_SECTOR = 8  # numbers in a sector of a GPU's memory; rows and their parts begin with one
_LEAST_COSINE = 1e-12  # smaller ones change no logit; kernels divide by it
_SHARE = 0.75  # of the width; a layer with more columns is not changed


class LayerForm(NamedTuple):
    """How a layer is evaluated: its weights, and whether it normalizes q, k and v."""

    weights: AttentionWeights
    normalize: bool


def in_coordinates(
    descriptor: SeAttenV2, grid: SplineGrid, kinds: TypeChoice, dtype: torch.dtype
) -> tuple[torch.Tensor, list[LayerForm]]:
    """For systems of these types: the table (n, F, B, .) of `mdops.ops.spline_rows`, with g and, if the first layer
    takes coordinates, then q, k and v; and each layer's form. Computed in float64, to the accuracy of `dtype`, and
    returned in `dtype`."""
    double = copy.deepcopy(descriptor).double()
    table = coefficients(double, grid, types=kinds)
    rows: _Rows | None = _Rows.of_pairs(double, grid, kinds)
    forms = []
    for k, layer in enumerate(double.layers):
        own, normalize = layer.weights(), layer.normalize
        if rows is not None:
            found = _in_bases(own, rows, _TOLERANCE[dtype], _fewer_than(len(own.out)))
            rows = None if found is None else rows.behind(layer)
            own = own if found is None else found
        if k == 0 and own.factors is not None:
            made = None if double.gated else _made_of_s(double, grid, kinds, own, normalize, TOLERANCE[dtype])
            if made is None:
                assert own.project is not None and own.project_bias is not None
                parts = table @ own.project
                # B-splines add up to 1. A bias is of the function, not of what is multiplied with the switch.
                (parts[:, :1] if double.gated else parts).add_(own.project_bias)
            else:
                parts, own, normalize = made, own._replace(factors=None), False
            between = parts.new_zeros(*table.shape[:3], -table.shape[3] % _SECTOR)
            table, own = torch.cat([table, between, parts], -1), own._replace(project=None, project_bias=None)
        cast: list[Any] = [w if w is None else w.to(dtype).contiguous() for w in own]
        forms.append(LayerForm(AttentionWeights(*cast), normalize))
    return table.to(dtype), forms


class JoinedForm(NamedTuple):
    """Layers and the sums after them as `mdops.ops.attention_moments` takes them.

    Attributes:
        table: of `mdops.ops.spline_rows`, with x of the first layer, then q, k and v.
        norm: w and b of the last layer's norm, over the number of slots; normalize: whether later layers normalize q,
            k and v.
    """

    table: torch.Tensor
    layers: list[JoinedLayer]
    norm: tuple[torch.Tensor, torch.Tensor]
    eps: float
    normalize: bool


def joined(
    descriptor: SeAttenV2, grid: SplineGrid, kinds: TypeChoice, dtype: torch.dtype
) -> JoinedForm | None:
    """For systems of these types; None if the op has no kernels: if a layer has too many dimensions, the first one's q,
    k and v are not smooth functions of s, or layers differ in `eps`. Accuracy as of `in_coordinates`."""
    double, device = copy.deepcopy(descriptor).double(), descriptor.mean.device
    layers, table = double.layers, coefficients(double, grid, types=kinds)
    if double.gated or any(layer.eps != layers[0].eps for layer in layers):
        return None
    rows, tolerance = _Rows.of_pairs(double, grid, kinds), _TOLERANCE[dtype]
    # Rows of g are x E + b, and x are sums of rows of `around`.
    around, e, b = _centred(rows.values), torch.eye(table.shape[-1], dtype=table.dtype, device=device), None
    forms: list[JoinedLayer] = []
    for layer in layers:
        if not bool(around.isfinite().all()):
            return None  # the answers will show it
        outside, basis = _principal(around)
        found = _in_bases(layer.weights(), rows, tolerance, _of_kernels(int((outside > tolerance).sum())))
        if found is None or basis.shape[1] < len(found.out):
            return None
        assert found.project is not None and found.project_bias is not None and found.factors is not None
        basis = basis[:, : len(found.out)]
        inner, project = basis.T @ e, None
        if b is None:
            parts = _made_of_s(double, grid, kinds, found, layer.normalize, TOLERANCE[dtype])
            if parts is None:
                return None
            table, b = torch.cat([_centred(table) @ basis, parts], dim=-1), torch.zeros_like(found.out_bias)
        else:
            forms[-1] = _behind_in(forms[-1], basis)
            factors = found.factors.clamp(min=_LEAST_COSINE)
            project = inner @ found.project, b @ found.project + found.project_bias, factors
        last = JoinedLayer(
            _centred(inner), _centred(found.out), _centred(b + found.out_bias), layer.scale, *(project or ())
        )
        forms.append(last)
        around, rows = _centred(rows.sums(layer)), rows.behind(layer)
        e, b = torch.diag(layer.norm_weight), layer.norm_bias
    if not has_moments(device, dtype, [len(form.inner) for form in forms], len(layers[-1].norm_bias)):
        return None

    def cast(x: Any) -> Any:
        return x.detach().to(dtype).contiguous() if isinstance(x, torch.Tensor) else x

    norm = cast(layers[-1].norm_weight / double.slots), cast(layers[-1].norm_bias / double.slots)
    made = [JoinedLayer(*map(cast, form)) for form in forms]
    return JoinedForm(cast(table), made, norm, layers[0].eps, layers[0].normalize)


class AttentionTables:
    """What follows from the weights, for some of the types.

    Attributes:
        splines: the types and statistics; table: of `spline_rows`; joined: the layers and the sums after them, as one
            op on GPUs, or None; layers: else each layer's form; absent: `SeAttenV2.absent_rows`.
    """

    def __init__(self, splines: SumTables) -> None:
        d: Any = splines.descriptor
        self.splines, form = splines, (d, splines.grid, splines.kinds, d.mean.dtype)
        with torch.no_grad():
            known = d.mean.is_cuda and d.layers and d.options.lmax == 1
            self.joined = joined(*form) if known else None
            if self.joined is None:
                self.table, self.layers = in_coordinates(*form)
            else:
                self.table, self.layers = self.joined.table, []
            embedded = F.embedding(splines.kinds.index, d.type_embedding())
            self.absent = d.absent_rows(splines.kinds, embedded)


def _centred(x: torch.Tensor) -> torch.Tensor:
    """x minus its mean along the last axis."""
    return x - x.mean(-1, keepdim=True)


def _behind_in(layer: JoinedLayer, basis: torch.Tensor) -> JoinedLayer:
    """The layer's output in coordinates of an orthonormal basis (M, D')."""
    return layer._replace(inner=layer.inner @ basis, out=layer.out @ basis, bias=layer.bias @ basis)


class _Rows(NamedTuple):
    """Rows of which a layer's rows are sums, within the tolerance.

    Attributes:
        values: (E, M).
        ones: (E, 1), 1 if a row gets the layer's bias, else 0.
    """

    values: torch.Tensor
    ones: torch.Tensor

    @classmethod
    def of_pairs(cls, d: SeAttenV2, grid: SplineGrid, kinds: TypeChoice) -> "_Rows":
        """g of all pairs of types at distances up to the cutoff."""
        n = len(kinds.numbers)
        count = max(2, min(_DISTANCES, _ROWS // n**2))
        r = torch.linspace(grid.r_min, d.cutoff, count, dtype=torch.float64, device=d.mean.device)
        fading = switch_curve(r, d.cutoff_smooth, d.cutoff)
        g = d.functions(fading / (r + d.protection), kinds)
        if d.gated:
            g = g[:, :1] + fading[:, None] * g[:, 1:]
        g = g.flatten(0, 2)
        return cls(g, torch.ones_like(g[:, :1]))

    def parts(self, weights: AttentionWeights) -> list[torch.Tensor]:
        """q, k and v."""
        assert weights.project is not None and weights.project_bias is not None
        return list((self.values @ weights.project + self.ones * weights.project_bias).chunk(3, dim=1))

    def sums(self, layer: AttentionLayer) -> torch.Tensor:
        """(., M), the rows of which g + o W_o + b_o is a sum, as o is a sum of rows of v."""
        w = layer.weights()
        return torch.cat([self.values, self.parts(w)[2] @ w.out, w.out_bias[None]])

    def behind(self, layer: AttentionLayer) -> "_Rows":
        """The rows of the layer's output, norm(g + o W_o + b_o)."""
        w = layer.weights()
        deviation = (self.values.var(1, correction=0).median() + layer.eps).rsqrt()
        inside = _centred(self.sums(layer)) * deviation * w.norm
        values = torch.cat([inside, w.norm_bias[None]])
        ones = torch.zeros_like(values[:, :1])
        ones[-1] = 1
        return _Rows(values, ones)


def _fewer_than(width: int) -> Callable[[int], int | None]:
    """Gives the number of columns for so many dimensions; None if that would save little of the width."""

    def choose(dimensions: int) -> int | None:
        columns = -(-max(dimensions, 1) // LANES) * LANES
        return columns if columns <= _SHARE * width else None

    return choose


def _of_kernels(least: int) -> Callable[[int], int | None]:
    """The same for the kernels of `attention_moments`, for at least so many dimensions."""
    return lambda dimensions: next((width for width in WIDTHS if max(dimensions, least) <= width), None)


def _in_bases(
    weights: AttentionWeights, rows: _Rows, tolerance: float, choose: Callable[[int], int | None]
) -> AttentionWeights | None:
    """The weights for coordinates in the spaces of q, k and v, with the number of columns that `choose` gives for their
    dimensions; None if it gives None, or if a number is not finite, which the answers will show."""
    parts = rows.parts(weights)
    if not all(bool(part.isfinite().all()) for part in parts):
        return None
    found = [_principal(part) for part in parts]
    width = choose(max(int((outside > tolerance).sum()) for outside, _ in found))
    if width is None or width > len(weights.out):
        return None
    assert weights.project is not None and weights.project_bias is not None
    of_q, of_k, of_v = (basis[:, :width] for _, basis in found)
    turn_q, cosines, turn_k = torch.linalg.svd(of_q.T @ of_k)
    bases = of_q @ turn_q, of_k @ turn_k.T, of_v
    thirds = weights.project.chunk(3, dim=1), weights.project_bias.chunk(3)
    project, bias = (torch.cat([w @ b for w, b in zip(p, bases, strict=True)], dim=-1) for p in thirds)
    out = of_v.T @ weights.out
    return weights._replace(project=project, project_bias=bias, out=out, factors=cosines)


def _principal(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The most that the first 0, 1, ... A - 1 principal directions of the rows of x (E, A) leave out of a row, over the
    longest row; and the directions, the columns of (A, A)."""
    basis = torch.linalg.svd(torch.linalg.qr(x, mode="r")[1])[2].T
    outside = (x @ basis).square().flip(1).cumsum(1).flip(1).amax(0).sqrt()
    return outside / outside[0].clamp(min=torch.finfo(x.dtype).tiny), basis


def _made_of_s(
    descriptor: SeAttenV2,
    grid: SplineGrid,
    kinds: TypeChoice,
    weights: AttentionWeights,
    normalize: bool,
    tolerance: float,
) -> torch.Tensor | None:
    """Coefficients of q, k and v as attention takes them, normalized and with factors; None if their splines, or the
    slopes of these, are off by more than `tolerance` of the largest."""
    project, bias, factors = weights.project, weights.project_bias, weights.factors
    assert project is not None and bias is not None and factors is not None

    def function(s: torch.Tensor) -> torch.Tensor:
        q, k, v = (embed(descriptor, s, types=kinds) @ project + bias).chunk(3, dim=-1)
        if normalize:
            q, k, v = unit(q), unit(k), unit(v)
        return torch.cat([q * factors, k, v], dim=-1)

    table = interpolate(function, grid, descriptor.mean)
    sizes, errors = [], []
    for some in in_cache(looked_at(grid.intervals, table.device), table):
        s = grid.at(beside(some))
        exact = function(s.flatten()).unflatten(2, (-1, 2))
        found = splines_beside(table, some)
        sizes.append([x.abs().max() for x in value_and_slope(exact, s)])
        errors.append([x.abs().max() for x in value_and_slope(found - exact, s)])
    size, error = (torch.tensor(x).amax(0) for x in (sizes, errors))
    return table if bool((error <= tolerance * size).all()) else None
