"""Products of dense layers, `mdops.ops.linear` and its adjoints, beside PyTorch's in float32, in CUDA graphs on a GPU.

    python benchmarks/linear.py [--device cuda] [--json FILE] [--degrees | --small]

The sizes are those of a training step of DPA-1 (192 atoms of water, 17,298 neighbours), of its fitting net, and of a
batch of 256 frames; with --degrees those of DPA-4's nodes, for products by degree; with --small those of a few
nodes or edges of models that pass messages, with gradients of weights that need no sums. Microseconds are medians;
errors are norms of differences from float64, relative to its norm.
"""

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import machine

from mdops.nn.equivariant.indices import coefficients, degree_table, of_each
from mdops.nn.equivariant.linear import product_of_each
from mdops.ops.linear import degree_linear, linear, linear_input, linear_weight

_SIZES = [
    *((17_298, *sizes) for sizes in ((25, 50), (50, 100), (100, 384), (128, 100))),
    *((rows, inputs, 240) for rows in (192, 49_152) for inputs in (1608, 240)),
]
_SMALL = [
    *((192, *sizes) for sizes in ((32, 32), (32, 96), (128, 128), (128, 832), (768, 128), (1_024, 256))),
    *((1_024, *sizes) for sizes in ((128, 64), (128, 256), (240, 240))),
    *((5_070, *sizes) for sizes in ((32, 96), (64, 64), (64, 192))),
]
# Nodes, degrees, inputs, outputs: for DPA-4 with 64 channels and degree 3, and for DeePMD-kit's example, Mini.
_DEGREES = [
    *(
        (n, 4, inputs, outputs)
        for n in (192, 1_536)
        for inputs, outputs in ((64, 64), (64, 192), (192, 64), (64, 576))
    ),
    *((1_536, 4, inputs, outputs) for inputs, outputs in ((576, 64), (64, 1_152), (1_152, 64))),
    *(
        (n, 3, inputs, outputs)
        for n in (192, 12_288)
        for inputs, outputs in ((32, 32), (32, 96), (96, 32), (32, 288), (288, 32))
    ),
]
_CALLS, _ROUNDS = 10, 9


def _microseconds(run: Callable[[], Any], device: str) -> float:
    """Time of a call."""
    if device == "cpu":
        times = []
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            run()
            times.append(1e6 * (time.perf_counter() - begin))
        return statistics.median(times)
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            run()
    graph.replay()
    times = []
    for _ in range(_ROUNDS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        graph.replay()
        events[1].record()
        events[1].synchronize()
        times.append(1e3 * events[0].elapsed_time(events[1]) / _CALLS)
    return statistics.median(times)


def _measured(size: tuple[int, int, int], device: str, sums: bool) -> list[dict[str, Any]]:
    n, inputs, outputs = size
    shapes = (n, inputs), (inputs, outputs), (outputs,), (n, outputs)
    x, weight, bias, grad = (torch.randn(*shape, device=device) for shape in shapes)
    wide = [t.double() for t in (x, weight, bias, grad)]
    forms: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...]]] = {
        "linear": (linear, lambda x, w, b: torch.addmm(b, x, w), (0, 1, 2)),
        "linear_input": (linear_input, lambda g, w: g @ w.T, (3, 1)),
        "linear_weight": (
            functools.partial(linear_weight, sums=sums),
            lambda x, g: (x.T @ g, g.sum(0)) if sums else x.T @ g,
            (0, 3),
        ),
    }
    rows = []
    for name, (ours, theirs, places) in forms.items():
        given = [(x, weight, bias, grad)[k] for k in places]
        want = _first(theirs(*(wide[k] for k in places)))
        us = [_microseconds(functools.partial(f, *given), device) for f in (ours, theirs)]
        errors = [float((_first(f(*given)) - want).norm() / want.norm()) for f in (ours, theirs)]
        rows.append(
            {
                "op": name,
                "size": size,
                "us": us[0],
                "pytorch_us": us[1],
                "error": errors[0],
                "pytorch_error": errors[1],
            }
        )
    return rows


def _by_degree(size: tuple[int, int, int, int], device: str) -> dict[str, Any]:
    """Beside a batch of products, with weights that a product with a table selects for each coefficient."""
    n, degrees, inputs, outputs = size
    x = torch.randn(n, degrees**2, inputs, device=device)
    weight = torch.randn(degrees, inputs, outputs, device=device)
    tables = {
        dtype: degree_table(coefficients(degrees - 1)).to(device, dtype) for dtype in (x.dtype, torch.float64)
    }

    def theirs(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return product_of_each(x, of_each(weight, tables[x.dtype]))

    want = theirs(x.double(), weight.double())
    ways = degree_linear, theirs
    us = [_microseconds(functools.partial(f, x, weight), device) for f in ways]
    errors = [float((f(x, weight) - want).norm() / want.norm()) for f in ways]
    names = "us", "pytorch_us", "error", "pytorch_error"
    return {"op": "degree_linear", "size": size} | dict(zip(names, [*us, *errors], strict=True))


def _first(found: Any) -> torch.Tensor:
    first: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--degrees", action="store_true")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    if arguments.degrees:
        rows = [_by_degree(size, arguments.device) for size in _DEGREES]
    else:
        sizes = _SMALL if arguments.small else _SIZES
        rows = [row for size in sizes for row in _measured(size, arguments.device, sums=not arguments.small)]
    print(f"{'op':<14}{'rows, in, out':>20}{'us':>9}{'PyTorch':>9}{'ratio':>7}{'error':>10}{'PyTorch':>10}")
    for row in rows:
        size = ", ".join(map(str, row["size"]))
        print(
            f"{row['op']:<14}{size:>20}{row['us']:9.1f}{row['pytorch_us']:9.1f}{row['us'] / row['pytorch_us']:7.2f}"
            f"{row['error']:10.1e}{row['pytorch_error']:10.1e}"
        )
    if arguments.json:
        answer = {"machine": machine(arguments.device), "rows": rows}
        arguments.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
