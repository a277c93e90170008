"""Times and errors of DPA-4's ops on edges and atoms, each op alone, against PyTorch's operations in float64:
layers (`so2_layer`), messages (`so2_messages`), products at points (`grid_product`), rotations (`edge_rotate` and its
adjoints), mixtures of orders (`order_mix`), gates (`scalar_gate`), and a last layer with its sums, computed per edge
and per atom (`order_moments`).

    python benchmarks/edge_layers.py [--device cuda] [--edges 17100 136700] [--atoms 192 1536 12288] [--json FILE]
        [--commit HASH]

Layers of DPA-4 with 64 channels and with 32, and the three layers of a message of Mini, with random numbers; on a GPU
also with tf32 products. The other ops have the sizes of both models. Errors are relative to the largest number
(docs/notes/dpa4-gpu.md).
"""

import argparse
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import machine, report

from mdops.nn.equivariant.grid import rotation_grid
from mdops.nn.equivariant.indices import coefficients
from mdops.nn.equivariant.linear import product_of_each
from mdops.ops import (
    EdgeIndex,
    edge_frames,
    edge_rotate,
    edge_rotate_back,
    order_mix,
    so2_layer,
    so2_messages,
)
from mdops.ops.so2_layer import _by_pytorch
from mdops.testing import within_groups

OPS = torch.ops.mdops
LAYERS = (
    (3, 64, True, 1),
    (3, 64, True, 2),
    (3, 64, False, 1),
    (2, 64, True, 1),
    (1, 64, True, 1),
    (2, 32, True, 1),
)  # degrees, channels, gates, groups of channels
GRIDS = ((112, 27, 96), (200, 48, 64), (200, 48, 192), (50, 16, 64))  # points, coefficients, channels
ROTATIONS = ((2, 96), (3, 64), (3, 192))  # degrees of functions on rotations, channels
FRAMES = ((2, 32), (3, 64))  # degrees of edges' rows with |m| <= 1, channels
CHECKED = 500  # edges, or a tenth of this number of atoms


def milliseconds(run: Callable[[], Any], device: str, *, count: int = 10) -> float:
    def wait() -> float:
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    run(), run()
    start = wait()
    for _ in range(count):
        run()
    return 1e3 * (wait() - start) / count


def error(found: torch.Tensor, want: torch.Tensor) -> float:
    return float((found.double() - want).abs().max() / want.abs().max())


def layer(
    edges: int,
    degrees: int,
    channels: int,
    gated: bool,
    groups: int,
    matmul: str,
    draw: Callable[..., Any],
    device: str,
) -> dict:
    middle, side = (degrees + 1) * channels, degrees * channels
    x, grad = (draw(edges, 3 * degrees + 1, channels) for _ in range(2))
    gates = (channels, side) if gated else (0, 0)
    shapes = (middle, middle), (side, 2 * side), gates
    weights = [0.1 * within_groups(draw(*shape), channels, groups) for shape in shapes]
    y = OPS.so2_layer(x, *weights, matmul, groups)
    own = x[-CHECKED:].double().requires_grad_()
    want = _by_pytorch(own, *(weight.double() for weight in weights))
    (by_x,) = torch.autograd.grad(want, own, grad[-CHECKED:].double())

    def back() -> torch.Tensor:
        return OPS.so2_layer_backward(grad, x, *weights, matmul, groups, y)

    return {
        "edges, degrees, channels, gates, groups": [edges, degrees, channels, gated, groups],
        "matmul": matmul,
        "forward_ms": milliseconds(lambda: OPS.so2_layer(x, *weights, matmul, groups), device),
        "backward_ms": milliseconds(back, device),
        "errors": [error(y[-CHECKED:], want.detach()), error(back()[-CHECKED:], by_x)],
    }


def edges_of(edges: int, device: str) -> tuple[int, tuple[torch.Tensor, ...]]:
    """The number of nodes, and which edges each node has."""
    nodes = max(1, edges // 89)
    index = (torch.arange(edges, device=device, dtype=torch.int32) * 31) % nodes
    counts = torch.bincount(index, minlength=nodes)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
    return nodes, (index, torch.argsort(index, stable=True).int(), offsets)


def message(edges: int, matmul: str, draw: Callable[..., Any], device: str) -> dict:
    """Messages of three layers, two with gates, and their sums: one op after the other, and one op for all."""
    nodes = max(1, edges // 89)
    vectors, mixture, x, weight = (
        draw(edges, 3),
        0.5 * draw(edges, 13),
        draw(nodes, 9, 32),
        draw(edges, 1),
    )
    index = (torch.arange(edges, device=device, dtype=torch.int32) * 31) % nodes
    of_neighbor, of_center = EdgeIndex.of(index, nodes), EdgeIndex.of(index.sort().values, nodes)
    of_center = of_center._replace(order=None)
    shapes = ((96, 96), 3), ((64, 128), 3), ((32, 64), 2)
    weights, both, gates = ([0.1 * draw(*shape) for _ in range(count)] for shape, count in shapes)
    layers = list(zip(weights, both, [*gates, draw(0, 0)], strict=True))
    leaves = [one.requires_grad_() for one in (vectors, mixture, x, weight)]
    grad = draw(nodes, 9, 32)

    def apart() -> torch.Tensor:
        _, turn = edge_frames(vectors, 2, 1)
        rows = edge_rotate(order_mix(mixture, turn, 2), x, of_neighbor)
        for layer in layers:
            rows = so2_layer(rows, *layer, matmul)
        return edge_rotate_back(turn, rows, weight, of_center)

    def together() -> torch.Tensor:
        return so2_messages(*leaves, of_neighbor, of_center, weights, both, gates, matmul)

    def exact() -> list[torch.Tensor]:
        own = [one.detach().double().requires_grad_() for one in leaves]
        _, turn = edge_frames(own[0], 2, 1)
        rows = edge_rotate(order_mix(own[1], turn, 2), own[2], of_neighbor)
        for layer in layers:
            rows = _by_pytorch(rows, *(one.double() for one in layer))
        sums = edge_rotate_back(turn, rows, own[3], of_center)
        return [sums.detach(), *torch.autograd.grad(sums, own, grad.double())]

    found: dict[str, Any] = {"edges": edges, "matmul": matmul}
    want = exact() if edges < 200_000 else None
    for name, way in (("one op", together), ("apart", apart)):
        sums = way()
        back = functools.partial(torch.autograd.grad, sums, leaves, grad, retain_graph=True)
        with torch.no_grad():
            found[f"forward_ms, {name}"] = milliseconds(way, device)
        found[f"backward_ms, {name}"] = milliseconds(back, device)
        if want is not None:
            found[f"errors, {name}"] = [
                error(*pair) for pair in zip((sums.detach(), *back()), want, strict=True)
            ]
    return found


def rotations(edges: int, degree: int, channels: int, draw: Callable[..., Any], device: str) -> dict:
    nodes, of = edges_of(edges, device)
    rows = 3 * degree + 1
    turn, x = draw(edges, rows, (degree + 1) ** 2), draw(nodes, (degree + 1) ** 2, channels)
    y, few = draw(edges, rows, channels), slice(-CHECKED, None)
    sources = x[of[0][few].long()].double()
    own = torch.arange(nodes, device=device) < max(1, CHECKED // 89)
    mine = own[of[0].long()].nonzero()[:, 0]
    terms = turn[mine].double().mT @ y[mine].double()
    sums = torch.zeros(nodes, *terms.shape[1:], dtype=torch.float64, device=device)
    sums.index_add_(0, of[0][mine].long(), terms)
    return {
        "edges, nodes, degree, channels": [edges, nodes, degree, channels],
        "rotate_ms": milliseconds(lambda: OPS.edge_rotate(turn, x, *of), device),
        "sum_ms": milliseconds(lambda: OPS.edge_rotate_sum(turn, y, *of), device),
        "outer_ms": milliseconds(lambda: OPS.edge_rotate_outer(y, x, *of), device),
        "errors": [
            error(OPS.edge_rotate(turn, x, *of)[few], turn[few].double() @ sources),
            error(OPS.edge_rotate_sum(turn, y, *of)[own], sums[own]),
            error(OPS.edge_rotate_outer(y, x, *of)[few], y[few].double() @ sources.mT),
        ],
    }


def orders(edges: int, degree: int, draw: Callable[..., Any], device: str) -> dict:
    """Rows of |m| <= 1, as in the matrices of edges."""
    rows, columns = 3 * degree + 1, (degree + 1) ** 2
    sizes = degree + 1, degree
    numbers, few = draw(edges, sum(size**2 for size in sizes)), slice(-CHECKED, None)
    x, y = draw(edges, rows, columns), draw(edges, rows, columns)
    parts = numbers[few].double().split([size**2 for size in sizes], 1)
    middle, side = (own.unflatten(1, (size, size)) for own, size in zip(parts, sizes, strict=True))

    def blocks(t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return t[few].double().split([degree + 1, degree, degree], 1)

    of_x, of_y = blocks(x), blocks(y)
    mixed = [own.mT @ rows for own, rows in zip((middle, side, side), of_x, strict=True)]
    back = [own @ rows for own, rows in zip((middle, side, side), of_x, strict=True)]
    products = [a @ b.mT for a, b in zip(of_x, of_y, strict=True)]
    outer = torch.cat([products[0].flatten(1), (products[1] + products[2]).flatten(1)], 1)

    def mix(transposed: bool) -> torch.Tensor:
        return OPS.order_mix(numbers, x, degree, transposed)

    return {
        "edges, degree": [edges, degree],
        "ms": milliseconds(lambda: mix(False), device),
        "transposed_ms": milliseconds(lambda: mix(True), device),
        "outer_ms": milliseconds(lambda: OPS.order_mix_outer(x, y, degree), device),
        "errors": [
            error(mix(False)[few], torch.cat(mixed, 1)),
            error(mix(True)[few], torch.cat(back, 1)),
            error(OPS.order_mix_outer(x, y, degree)[few], outer),
        ],
    }


def last_layer(edges: int, degree: int, channels: int, draw: Callable[..., Any], device: str) -> dict:
    """A layer without a gate, and the sums of its output, with a product per edge, and with a product per atom."""
    atoms, (index, _, offsets) = edges_of(edges, device)
    of = index.sort().values, None, offsets
    _, turn = edge_frames(draw(edges, 3), degree, 1)
    y, weight = draw(edges, 3 * degree + 1, channels), draw(edges, 1)
    middle, side = (degree + 1) * channels, degree * channels
    given = draw(middle, middle), draw(side, 2 * side), y.new_empty(0, 0)
    matrices = draw(degree + 1, (3 * degree + 1) * channels, channels)
    grad, of_moments = draw(atoms, (degree + 1) ** 2, channels), draw(atoms, (degree + 1) ** 2, y[0].numel())

    def by_edges() -> torch.Tensor:
        return OPS.edge_rotate_back(turn, OPS.so2_layer(y, *given, "float32"), weight, *of)

    def by_edges_back() -> None:
        _, by_rows, _ = OPS.edge_rotate_back_backward(grad, turn, y, weight, *of)
        OPS.so2_layer_backward(by_rows, y, *given, "float32", 1, y)

    def by_atoms() -> torch.Tensor:
        return product_of_each(OPS.order_moments(turn, y, weight, *of), of_columns)

    def by_atoms_back() -> None:
        OPS.order_moments_backward(product_of_each(grad, of_columns.mT), turn, y, weight, *of)

    degrees = torch.tensor([ell for ell in range(degree + 1) for _ in range(2 * ell + 1)], device=device)
    of_columns = matrices[degrees]
    return {
        "edges, atoms, degree, channels": [edges, atoms, degree, channels],
        "once_an_edge_ms": [milliseconds(by_edges, device), milliseconds(by_edges_back, device)],
        "once_an_atom_ms": [milliseconds(by_atoms, device), milliseconds(by_atoms_back, device)],
        "of_it_moments_ms": [
            milliseconds(lambda: OPS.order_moments(turn, y, weight, *of), device),
            milliseconds(lambda: OPS.order_moments_backward(of_moments, turn, y, weight, *of), device),
        ],
    }


def gates(atoms: int, rows: int, channels: int, draw: Callable[..., Any], device: str) -> dict:
    x, grad = draw(atoms, rows, channels), draw(atoms, rows, channels)
    given = draw(atoms, channels), draw(atoms, 2 * channels)
    few = slice(-(CHECKED // 10), None)
    own = [t[few].double().requires_grad_() for t in (x, *given)]
    a, b = own[2].chunk(2, 1)
    want = own[0] * own[1].sigmoid()[:, None]
    want = torch.cat([want[:, :1] + (torch.nn.functional.silu(a) * b)[:, None], want[:, 1:]], 1)
    by_all = torch.autograd.grad(want, own, grad[few].double())

    def back() -> tuple[torch.Tensor, ...]:
        return OPS.scalar_gate_backward(grad, x, *given)

    return {
        "atoms, rows, channels": [atoms, rows, channels],
        "forward_ms": milliseconds(lambda: OPS.scalar_gate(x, *given), device),
        "backward_ms": milliseconds(back, device),
        "errors": [
            error(OPS.scalar_gate(x, *given)[few], want.detach()),
            *(error(found[few], by) for found, by in zip(back(), by_all, strict=True)),
        ],
    }


def at_rotations(atoms: int, degree: int, channels: int, draw: Callable[..., Any], device: str) -> dict:
    """Products of functions on rotations in three frames, angle by angle and point by point."""
    to, back = (t.to(device) for t in rotation_grid(degree, tuple(coefficients(degree)), 1))
    u, v = (draw(atoms, to.shape[1], channels) for _ in range(2))
    few = slice(-(CHECKED // 10), None)
    want = back @ ((to @ u[few].double()) * (to @ v[few].double()))
    matrices = to.float(), to.float(), back.mT.float().contiguous()

    def product(by_angles: bool) -> torch.Tensor:
        return OPS.grid_product(*matrices, u, v, by_angles)

    return {
        "atoms, degree, channels": [atoms, degree, channels],
        "by angles, ms": milliseconds(lambda: product(True), device),
        "point by point, ms": milliseconds(lambda: product(False), device),
        "errors": [error(product(True)[few], want), error(product(False)[few], want)],
    }


def grid(atoms: int, points: int, columns: int, channels: int, draw: Callable[..., Any], device: str) -> dict:
    a, b, out = matrices = [draw(points, columns) for _ in range(3)]
    u, v = (draw(atoms, columns, channels) for _ in range(2))
    few = -(CHECKED // 10)

    def values(matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ge,nec->ngc", matrix.double(), x[few:].double())

    want = torch.einsum("gd,ngc->ndc", out.double(), values(a, u) * values(b, v))
    return {
        "atoms, points, coefficients, channels": [atoms, points, columns, channels],
        "ms": milliseconds(lambda: OPS.grid_product(*matrices, u, v, False), device),
        "error": error(OPS.grid_product(*matrices, u, v, False)[few:], want),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--edges", type=int, nargs="+", default=[17100, 136700])
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 1536, 12288])
    parser.add_argument("--commit", help="of the measured source, recorded as it is")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    random = torch.Generator(args.device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, device=args.device)

    names = ("float32",) if args.device == "cpu" else ("float32", "tf32")
    result = {
        "machine": machine(args.device, args.commit),
        "so2_layer": [
            layer(edges, *size, name, draw, args.device)
            for edges in args.edges
            for size in LAYERS
            for name in names
        ],
        "so2_messages": [message(edges, name, draw, args.device) for edges in args.edges for name in names],
        "grid_product": [grid(atoms, *size, draw, args.device) for atoms in args.atoms for size in GRIDS],
        "grid_product on rotations": [
            at_rotations(atoms, *size, draw, args.device) for atoms in args.atoms for size in ROTATIONS
        ],
        "edge_rotate": [
            rotations(edges, *size, draw, args.device) for edges in args.edges for size in FRAMES
        ],
        "order_mix": [
            orders(edges, degree, draw, args.device) for edges in args.edges for degree, _ in FRAMES
        ],
        "last layer": [
            last_layer(edges, *size, draw, args.device) for edges in args.edges for size in FRAMES
        ],
        "scalar_gate": [
            gates(atoms, 3 * (degree + 1) ** 2, channels, draw, args.device)
            for atoms in args.atoms
            for degree, channels in ROTATIONS
        ],
    }
    report(result, args.json)


if __name__ == "__main__":
    main()
