"""Fitting nets of all kinds: times of their kernels beside the lower bounds (floors) of their products.

    python benchmarks/nets.py [--device cpu] [--atoms N ...] [--only TEXT] [--training] [--ways] [--ops] [--json FILE]
                              [--commit HASH]

On the CPU: `mlp_value_and_gradient` of water's fitting net against its products with torch.mm, in one run, and the net
and the whole step with products of each accuracy that the CPU has. On a GPU:
whole steps of water with nets of every activation function, width and depth, and the part of the net's kernels. The
floor of its products has three float16 products for one float32 product, at the rate that torch.mm reaches
in turn with the step. Another floor is that of its input's bytes, which are written and read twice.

With --ways, on a GPU: the steps with each way of the net in turn: the one that is chosen, a block with mma.sync of 32
and of 64 rows, and a kernel per product.

With --training: the net's work in a training (values, gradients by the input, and the weights' gradients of a loss on
both), with the op `mlp` and with PyTorch's operations on its layers, in turn.

With --ops, on a GPU: the ops on nets beside their products with torch.mm, in turn (net_ops.py).
"""

import argparse
import functools
import itertools
import json
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import machine

from mdops import Potential
from mdops.cli.sample_model import sample_model
from mdops.jit.sample_box import sample_box
from mdops.nn.net import Layer
from mdops.ops import mlp, mlp_value_and_gradient
from mdops.ops.activation import CODES
from mdops.potential import Matmul
from mdops.system import from_atoms
from mdops.tables.spline import DEFAULT_R_MIN

WATER = (1600, 240, 240, 240, 1)
DEEP = [(240,) * n for n in (2, 4, 6, 9, 12, 16)]
WIDE = [(n,) * 3 for n in (64, 128, 192, 256, 384, 512)]
NET_KERNELS = "(chain|layer|cluster|block)_kernel"
BLOCK_ROWS = {"chosen": "", "block 32": "32", "block 64": "64", "products": "1"}  # ways: MDOPS_BLOCK_ROWS
MEMORY_RATE = 3.0e12  # bytes per second of an H100's memory, as reached by copies


def seconds(run: Callable[[], Any], times: int) -> float:
    run()
    begin = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - begin) / times


def on_cpu(atoms: int) -> list[dict[str, Any]]:
    rows = []
    for dtype in (torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int, of: torch.dtype = dtype, by: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(*shape, dtype=of, generator=by)

        weights = [random(a, b) / a**0.5 for a, b in itertools.pairwise(WATER)]
        biases = [random(n) for n in WATER[1:]]
        x = random(atoms, WATER[0])
        hidden = [random(atoms, n) for n in WATER[1:]]
        pairs = list(zip([x, *hidden[:-1]], weights, strict=True))
        pairs += [(h, w.T.contiguous()) for h, w in zip(hidden, weights, strict=True)]
        runs: dict[str, Callable[[], Any]] = {
            "net": lambda x=x, w=weights, b=biases: mlp_value_and_gradient(x, w, b),
            "products": lambda pairs=pairs: [torch.mm(a, b) for a, b in pairs],
        }
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _, (name, run) in itertools.product(range(9), runs.items()):
            found[name].append(1e3 * seconds(run, 3))
        ratios = [a / b for a, b in zip(found["net"], found["products"], strict=True)]
        rows.append(
            {
                "dtype": str(dtype),
                "atoms": atoms,
                **{f"{name}_ms": statistics.median(times) for name, times in found.items()},
                "ratio": statistics.median(ratios),
            }
        )
        print(rows[-1], flush=True)
    return rows


def by_matmul(atoms: int) -> list[dict[str, Any]]:
    """The net and the whole step with each kind of product, in turn, and the forces' errors (rms, eV/A)."""
    choices: list[Matmul] = ["float32", *(["bf16x6", "bf16x3", "bf16"] if torch.ops.mdops.cpu_bf16() else [])]  # type: ignore[list-item]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(a, b, generator=generator) / a**0.5 for a, b in itertools.pairwise(WATER)]
    x = torch.randn(atoms, WATER[0], generator=generator)
    double = sample_model((46, 92), 6.0, (25, 50, 100), 16, WATER[1:-1], torch.float64)
    system = from_atoms([sample_box(atoms, ["O", "H"])], ["O", "H"])
    expected = double.evaluate(system)["forces"] if atoms <= 2000 else None
    pairs, models = double.neighbor_list(system), {}
    for name in choices:
        models[name] = sample_model((46, 92), 6.0, (25, 50, 100), 16, WATER[1:-1])
        models[name].use_spline(DEFAULT_R_MIN)
        models[name].use_matmul(name)
    times: dict[tuple[str, str], list[float]] = {}
    for _, name in itertools.product(range(11), choices):
        net = seconds(lambda m=name: mlp_value_and_gradient(x, weights, matmul=m), 1)
        step = seconds(lambda m=name: models[m].evaluate(system, pairs), 1)
        times.setdefault((name, "net"), []).append(net)
        times.setdefault((name, "step"), []).append(step)
    rows = []
    for name in choices:
        row: dict[str, Any] = {"matmul": name, "atoms": atoms, "units": torch.ops.mdops.cpu_bf16()}
        for part in ("net", "step"):
            own, base = times[name, part], times["float32", part]
            row[f"{part}_ms"] = 1e3 * statistics.median(own)
            row[f"{part}_of_float32"] = statistics.median(a / b for a, b in zip(own, base, strict=True))
        if expected is not None:
            off = models[name].evaluate(system, pairs)["forces"] - expected
            row["force_rms"] = off.square().mean().sqrt().item()
            row["force_of_largest"] = (off.abs().max() / expected.abs().max()).item()
        rows.append(row)
        print(row, flush=True)
    return rows


def in_training(device: str) -> list[dict[str, Any]]:
    """Milliseconds of a training's passes with `mlp` and with the layers' operations."""
    cases = [(1600, 240, 240, 240, 1), (400, 120, 120, 120, 1), (1, 25, 50, 100)]
    sizes = [(widths, n) for widths in cases for n in (192, 1536 if len(widths) > 4 else 17280)]
    rows = []
    for (widths, atoms), dtype in itertools.product(sizes, (torch.float32, torch.float64)):
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int, of: torch.dtype = dtype, by: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(*shape, dtype=of, generator=by).to(device)

        last = len(widths) - 2
        layers = [
            Layer(random(a, b) / a**0.5, random(b), None, "tanh" if n < last else "linear", residual=n < last)
            for n, (a, b) in enumerate(itertools.pairwise(widths))
        ]
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        x = random(atoms, widths[0]).requires_grad_()

        def by_layers(layers: Any = layers, x: torch.Tensor = x) -> torch.Tensor:
            for layer in layers:
                x = layer(x)
            return x

        def passes(net: Callable[[], torch.Tensor], x: Any = x, of: Any = (weights, biases)) -> None:
            value = net()
            (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            loss = value.square().sum() + gradient.square().sum()
            torch.autograd.grad(loss, [*of[0], *of[1]])
            if device == "cuda":
                torch.cuda.synchronize()

        ways = {"mlp": lambda x=x, w=weights, b=biases: mlp(x, w, b), "layers": by_layers}
        found: dict[str, list[float]] = {name: [] for name in ways}
        for _, (name, way) in itertools.product(range(9), ways.items()):
            found[name].append(1e3 * seconds(lambda way=way: passes(way), 2))
        ratios = [a / b for a, b in zip(found["mlp"], found["layers"], strict=True)]
        rows.append(
            {
                "widths": list(widths),
                "rows": atoms,
                "dtype": str(dtype),
                **{f"{name}_ms": statistics.median(times) for name, times in found.items()},
                "ratio": statistics.median(ratios),
            }
        )
        print(rows[-1], flush=True)
    return rows


class BesideProducts:
    """A step, in turn with a float16 product with float32 sums by torch.mm, so that the profiler measures both at the
    same clock rate."""

    SIZE = 8192

    def __init__(self) -> None:
        from cuda_inference import kernels

        self._a = torch.randn(self.SIZE, self.SIZE, device="cuda", dtype=torch.float16)
        self._out = torch.empty_like(self._a)
        self.step: Any = None
        self.replay()
        self._names = set(kernels(self))  # type: ignore[arg-type]

    def replay(self) -> None:
        torch.mm(self._a, self._a, out=self._out)
        if self.step is not None:
            self.step.replay()

    def kernels(self, step: Any) -> tuple[dict[str, float], float]:
        """Microseconds of each kernel in a step, and the products' operations per second."""
        from cuda_inference import kernels

        self.step = step
        times = kernels(self)  # type: ignore[arg-type]
        own = sum(times.pop(name) for name in self._names)
        return times, 1e6 * 2.0 * self.SIZE**3 / own


def with_parameters(fused: Any, more: Any, system: Any, pairs: Any, **options: Any) -> Any:
    return fused(system, pairs, *more, **options)


def cases(only: str = "") -> list[tuple[str, tuple[int, ...], int]]:
    """Activation, widths, and number of frame parameters; those whose name contains `only`."""
    found: list[tuple[str, tuple[int, ...], int]] = [(name, (240,) * 3, 0) for name in CODES]
    found += [("tanh", widths, 0) for widths in [*WIDE, *DEEP, (120, 240, 240), (256, 512, 512)]]
    found += [("tanh", (240,) * 3, 4), ("gelu", (256,) * 3, 0), ("silu", (120, 240, 240), 2)]
    return [case for case in found if re.search(only, " ".join(map(str, (case[0], *case[1]))))]


def on_gpu(sizes: list[int], only: str) -> list[dict[str, Any]]:
    from cuda_inference import captured, listed, matrix_operations, milliseconds, repeated

    beside = BesideProducts()
    rows = []
    for atoms, (activation, widths, fparam) in itertools.product(sizes, cases(only)):
        frames = [repeated(sample_box(192, ["O", "H"]), atoms)]
        model = sample_model((46, 92), 6.0, (25, 50, 100), 16, widths, activation=activation, fparam=fparam)
        model.use_spline(DEFAULT_R_MIN)
        model = model.to("cuda")
        system, pairs = listed(model, frames)
        fused: Any = model.evaluator()
        more = (torch.zeros(fparam, device="cuda"), None) if fparam else (None, None)
        step = captured(functools.partial(with_parameters, fused, more), system, pairs)
        ms, spread = milliseconds(step, 50)
        times, rate = beside.kernels(step)
        net = sum(us for name, us in times.items() if re.search(NET_KERNELS, name))
        products = 1e9 * 3 * matrix_operations(model) / rate
        features = 1600 - 16 * 15 // 2
        bytes_floor = 1e9 * 4 * 4 * features / MEMORY_RATE
        rows.append(
            {
                "atoms": atoms,
                "activation": activation,
                "widths": list(widths),
                "fparam": fparam,
                "step_ns": 1e6 * ms / atoms,
                "spread": spread,
                "net_ns": 1e3 * net / atoms,
                "products_flops": rate,
                "products_floor_ns": products,
                "bytes_floor_ns": bytes_floor,
                "ratio": 1e3 * net / atoms / max(products, bytes_floor),
            }
        )
        r = rows[-1]
        print(
            f"{atoms:6} {activation:9} {'-'.join(map(str, widths))[:24]:25} {fparam} step {r['step_ns']:7.1f} "
            f"net {r['net_ns']:7.1f} floors {products:6.1f} {bytes_floor:5.1f} ratio {r['ratio']:.2f} "
            f"at {1e-12 * rate:.0f} TFLOP/s",
            flush=True,
        )
    return rows


def ways_on_gpu(sizes: list[int], only: str) -> list[dict[str, Any]]:
    """Microseconds of a step, median of five in turn, and of the net's kernels in it, for each way."""
    from cuda_inference import captured, kernels, listed, milliseconds, repeated

    rows, model = [], None
    for (activation, widths, fparam), atoms in itertools.product(cases(only), sizes):
        if fparam:
            continue
        if model is None or atoms == sizes[0]:
            model = sample_model((46, 92), 6.0, (25, 50, 100), 16, widths, activation=activation)
            model.use_spline(DEFAULT_R_MIN)
            model = model.to("cuda")
        system, pairs = listed(model, [repeated(sample_box(192, ["O", "H"]), atoms)])
        fused: Any = model.evaluator()
        steps = {}
        for name, block_rows in BLOCK_ROWS.items():
            os.environ["MDOPS_BLOCK_ROWS"] = block_rows
            steps[name] = captured(fused, system, pairs)
        os.environ.pop("MDOPS_BLOCK_ROWS")
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _, (name, step) in itertools.product(range(5), steps.items()):
            times[name].append(1e3 * milliseconds(step, max(1, min(20, 200_000 // atoms)))[0])
        row: dict[str, Any] = {"atoms": atoms, "activation": activation, "widths": list(widths), "ways": {}}
        for name, step in steps.items():
            of_net = {k: us for k, us in kernels(step).items() if re.search(NET_KERNELS, k)}
            row["ways"][name] = {"step_us": statistics.median(times[name]), "net_us": sum(of_net.values())}
            row["ways"][name]["kernels"] = len(of_net)
        rows.append(row)
        told = "  ".join(f"{n} {w['step_us']:.0f} ({w['net_us']:.0f})" for n, w in row["ways"].items())
        print(f"{atoms:6} {activation:9} {'-'.join(map(str, widths))[:24]:25} us: {told}", flush=True)
    return rows


def float64_on_gpu(atoms: int) -> dict[str, Any]:
    """A step in float64, in a CUDA graph as in the engine, and as in `Potential.evaluate`; and its kernels."""
    from cuda_inference import captured, kernels, listed, milliseconds, repeated

    model: Potential = sample_model((46, 92), 6.0, (25, 50, 100), 16, (240,) * 3, torch.float64)
    model.use_spline(DEFAULT_R_MIN)
    model = model.to("cuda")
    system, pairs = listed(model, [repeated(sample_box(192, ["O", "H"]), atoms)])

    def run() -> None:
        model.evaluate(system, pairs)
        torch.cuda.synchronize()

    run()
    took = statistics.median(seconds(run, 1) for _ in range(5))
    system.find_atoms_by_type(len(model.type_map))  # a step in a graph cannot do this
    step = captured(model.evaluator(), system, pairs)
    ms, spread = milliseconds(step, 20)
    times = kernels(step)
    longest = {k[:90]: v for k, v in list(times.items())[:25]}
    print(
        f"float64: {1e6 * ms / atoms:.0f} ns/atom in a graph, kernels {1e3 * sum(times.values()) / atoms:.0f}; "
        f"{1e9 * took / atoms:.0f} by evaluate"
    )
    for name, us in longest.items():
        print(f"  {us:9.1f} us {name}")
    return {
        "step_ns": 1e6 * ms / atoms,
        "spread": spread,
        "evaluate_ns": 1e9 * took / atoms,
        "kernels_ns": 1e3 * sum(times.values()) / atoms,
        "kernels_us": longest,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--atoms", type=int, nargs="+", help="on a GPU: of several sizes")
    parser.add_argument("--only", default="", help="on a GPU: rows that match this expression")
    parser.add_argument("--training", action="store_true", help="what a training asks of a net, alone")
    parser.add_argument(
        "--ways", action="store_true", help="on a GPU: steps with each way of the net in turn"
    )
    parser.add_argument("--ops", action="store_true", help="on a GPU: the ops on nets, alone")
    parser.add_argument("--commit", default=None)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if (arguments.ways or arguments.ops) and arguments.device != "cuda":
        parser.error("--ways and --ops are a GPU's: name it by --device cuda")
    sizes: list[int] = arguments.atoms or [12288 if arguments.device == "cuda" else 1536]
    atoms = sizes[-1]
    report: dict[str, Any] = {"machine": machine(arguments.device, arguments.commit)}
    if arguments.training:
        report["training"] = in_training(arguments.device)
    elif arguments.ways:
        report["ways"] = ways_on_gpu(sizes, arguments.only)
    elif arguments.ops:
        from net_ops import ops_on_gpu

        report["ops"] = ops_on_gpu(arguments.atoms)
    elif arguments.device == "cuda":
        report["nets"] = on_gpu(sizes, arguments.only)
        if re.search(arguments.only, "float64"):
            report["float64"] = float64_on_gpu(atoms)
    else:
        report |= {"nets": on_cpu(atoms), "matmul": [r for n in (192, 1536, atoms) for r in by_matmul(n)]}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
