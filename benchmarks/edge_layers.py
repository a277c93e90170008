"""Times and errors of `so2_layer` and `grid_product`, beside float64 of PyTorch's operations.

    python benchmarks/edge_layers.py [--device cuda] [--edges 17100 136700] [--atoms 192 1536 12288] [--json FILE]
        [--commit HASH]

Layers of DPA-4 with 64 channels and with 32, of numbers drawn at random, on a GPU also with products of tf32; errors
are of the largest number (docs/notes/message-passing-gpu.md).
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import machine, report

from mdops.ops.so2_layer import _by_pytorch

OPS = torch.ops.mdops
LAYERS = (
    (3, 64, True),
    (3, 64, False),
    (2, 64, True),
    (1, 64, True),
    (2, 32, True),
)  # degrees, channels, gates
GRIDS = ((112, 27, 96), (200, 48, 64), (200, 48, 192), (50, 16, 64))  # points, coefficients, channels
CHECKED = 500  # edges, or a tenth of it atoms


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
    edges: int, degrees: int, channels: int, gated: bool, matmul: str, draw: Callable[..., Any], device: str
) -> dict:
    middle, side = (degrees + 1) * channels, degrees * channels
    x, grad = (draw(edges, 3 * degrees + 1, channels) for _ in range(2))
    gates = (channels, side) if gated else (0, 0)
    weights = [0.1 * draw(*shape) for shape in ((middle, middle), (side, 2 * side), gates)]
    y = OPS.so2_layer(x, *weights, matmul)
    own = x[-CHECKED:].double().requires_grad_()
    want = _by_pytorch(own, *(weight.double() for weight in weights))
    (by_x,) = torch.autograd.grad(want, own, grad[-CHECKED:].double())

    def back() -> torch.Tensor:
        return OPS.so2_layer_backward(grad, x, *weights, matmul, y)

    return {
        "edges, degrees, channels, gates": [edges, degrees, channels, gated],
        "matmul": matmul,
        "forward_ms": milliseconds(lambda: OPS.so2_layer(x, *weights, matmul), device),
        "backward_ms": milliseconds(back, device),
        "errors": [error(y[-CHECKED:], want.detach()), error(back()[-CHECKED:], by_x)],
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
        "grid_product": [grid(atoms, *size, draw, args.device) for atoms in args.atoms for size in GRIDS],
    }
    report(result, args.json)


if __name__ == "__main__":
    main()
