"""The ops on nets on a GPU, beside the products of which they consist (`nets.py --device cuda --ops`)."""

import functools
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from cuda_inference import kernels

from mdops.ops import mlp_value_and_gradient
from mdops.ops.activation import CODES

ROWS = (192, 1_536, 12_288, 98_304)
WATER = (1600, 240, 240, 240, 1)
_ROUNDS = 9
_MOST_CHECKED = 12_288  # rows that are compared with float64


class _Case:
    """Rows, layers, arguments of a derivative, and one matrix for each of a net's products."""

    def __init__(self, rows: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda")

        self.x, self.direction = random(rows, WATER[0]), random(rows, WATER[0])
        self.weights = [random(a, b) / a**0.5 for a, b in itertools.pairwise(WATER)]
        self.biases = [random(n) for n in WATER[1:]]
        self.grad, self.grad_value = random(rows, 1), random(rows, 1)
        self._values = [self.x, *(random(rows, n) for n in WATER[1:])]

    def up(self) -> list[torch.Tensor]:
        """x W of every layer."""
        return [torch.mm(a, w) for a, w in zip(self._values, self.weights, strict=False)]

    def down(self, first: int = 0) -> list[torch.Tensor]:
        """g W^T of layers from `first` on."""
        layers = list(zip(self._values[1:], self.weights, strict=True))
        return [torch.mm(g, w.t()) for g, w in layers[first:]]

    def of_weights(self) -> list[torch.Tensor]:
        """x^T g of every layer."""
        return [torch.mm(a.t(), b) for a, b in itertools.pairwise(self._values)]

    def passes(self) -> list[Any]:
        """Forward, backward, and backward once more, as single ops."""
        ops, nothing = torch.ops.mdops, self.x.new_empty(0)
        hidden = len(self.weights) - 1
        net = (
            self.x,
            self.weights,
            self.biases,
            [nothing] * (hidden + 1),
            [0, *[1] * (hidden - 1)],
            [CODES["tanh"]] * hidden,
            [3.0] * hidden,
            "float32",
        )
        return [
            ops.mlp(*net),
            ops.mlp_backward(self.grad, *net, True),
            ops.mlp_backward_backward(self.direction, self.grad, self.grad_value, *net, True),
        ]

    def products_of_passes(self) -> list[Any]:
        """The products of `passes`; each pass begins with the layers' values."""
        forward = [self.up()]
        backward = [self.up(), self.down(), self.of_weights()]
        twice = [
            self.up(),
            self.up(),
            self.down(),
            self.down(1),
            self.of_weights(),
            self.of_weights(),
        ]
        return [*forward, *backward, *twice]

    def by_layers(self) -> Any:
        """A net whose layers have different functions, for which there is no kernel of a whole net."""
        return mlp_value_and_gradient(self.x, self.weights, self.biases, activation=["tanh", "tanh", "gelu"])


def _graph(run: Callable[[], Any], calls: int) -> torch.cuda.CUDAGraph:
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * begin.elapsed_time(end)


def _in_turn(ways: dict[str, Callable[[], Any]], calls: int) -> dict[str, float]:
    """Microseconds of a call of each, from CUDA graphs of several calls."""
    graphs = {name: _graph(way, calls) for name, way in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _, (name, graph) in itertools.product(range(_ROUNDS), graphs.items()):
        found[name].append(_replayed(graph) / calls)
    return {name: statistics.median(times) for name, times in found.items()}


def _from_python(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Microseconds of a call of each, one after the other without a graph."""
    calls, found = 20, {}
    for name, way in ways.items():
        times = []
        for _ in range(_ROUNDS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                way()
            torch.cuda.synchronize()
            times.append(1e6 * (time.perf_counter() - begin) / calls)
        found[name] = statistics.median(times)
    return found


def _errors(case: _Case) -> dict[str, list[float]]:
    """Differences of value and gradient from float64, norms relative to norms."""
    wide = [[w.double() for w in of] for of in (case.weights, case.biases)]
    wanted = mlp_value_and_gradient(case.x.double(), *wide)
    found = {}
    for name in ("float32", "tf32"):
        answer = mlp_value_and_gradient(case.x, case.weights, case.biases, matmul=name)
        found[name] = [float((a - b).norm() / b.norm()) for a, b in zip(answer, wanted, strict=True)]
    return found


def _measured(rows: int) -> dict[str, Any]:
    case = _Case(rows)
    calls = max(1, min(10, 20_000 // rows))
    value = functools.partial(mlp_value_and_gradient, case.x, case.weights, case.biases)
    ways: dict[str, Callable[[], Any]] = {
        "value_and_gradient": value,
        "value_and_gradient_tf32": functools.partial(value, matmul="tf32"),
        "value_and_gradient_by_layers": case.by_layers,
        "its_products": lambda: [*case.up(), *case.down()],
        "passes": case.passes,
        "products_of_passes": case.products_of_passes,
    }
    row: dict[str, Any] = {"rows": rows, "graph_us": _in_turn(ways, calls)}
    row["kernels_us"] = {name: kernels(_graph(ways[name], 1)) for name in ("value_and_gradient", "passes")}
    if rows <= _MOST_CHECKED:
        row["python_us"], row["errors"] = _from_python(ways), _errors(case)
    return row


def ops_on_gpu(sizes: list[int] | None) -> list[dict[str, Any]]:
    found = []
    for rows in sizes or ROWS:
        torch.cuda.empty_cache()
        row = _measured(rows)
        us = row["graph_us"]
        print(f"{rows:6} rows, us in a graph (from Python)")
        for name, time_ in us.items():
            python = row.get("python_us", {}).get(name)
            print(f"  {name:30}{time_:10.1f}" + (f"{python:10.1f}" if python else ""))
        print(f"  value and gradient {us['value_and_gradient'] / us['its_products']:.2f} of its products,")
        print(f"  passes {us['passes'] / us['products_of_passes']:.2f} of theirs; errors {row.get('errors')}")
        for name, time_ in row["kernels_us"]["value_and_gradient"].items():
            print(f"    {time_:10.1f} us {name[:80]}", flush=True)
        found.append(row)
    return found
