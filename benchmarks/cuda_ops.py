"""Each op on a GPU beside its floor, the time to read every input and write every output once.

    python benchmarks/cuda_ops.py [--atoms 192 12288 98304] [--dtype float32] [--commit HASH] [--json FILE]

The data are similar to water's at a cutoff of 6 A: 30 O and 60 H around each atom, distances as in a liquid, splines
with 72 intervals (77 functions). An op is captured 20 times in a CUDA graph; the median of the replays, from CUDA
events, is divided by 20. The neighbour search has its own box and cutoff (`liquid`). "eager" is the time of a call
from Python, with the allocation of tensors. The floor uses the bandwidth of a copy of 1 GiB on the device, which is
measured first. Small sizes stay in the chip's cache and may be faster than their floor.
"""

import argparse
import datetime
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mdops  # noqa: F401  (registers the ops)

OPS = torch.ops.mdops
CUTOFF, SMOOTH, S_MAX, INTERVALS = 6.0, 0.5, 1 / 0.6, 72
COUNTS = (30, 60)
CALLS, REPLAYS = 20, 15


def water(atoms: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A pair list of this many atoms whose neighbours have similar indices, and further arguments of the ops."""
    gen = torch.Generator(device="cuda").manual_seed(0)
    width = sum(COUNTS)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen, device="cuda", dtype=torch.float64)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=gen, device="cuda", dtype=torch.float64)

    direction = random(atoms, width, 3)
    distance = (0.9**3 + (CUTOFF**3 - 0.9**3) * uniform(atoms, width, 1)) ** (1 / 3)
    near = torch.randint(-1000, 1001, (atoms, width), generator=gen, device="cuda")
    images = torch.randint(0, 1 << 30, (atoms, width), generator=gen, device="cuda")
    return {
        "positions": 50 * uniform(atoms, 3),
        "cell": 50 * torch.eye(3, dtype=torch.float64, device="cuda")[None],
        "batch": torch.zeros(atoms, dtype=torch.int32, device="cuda"),
        "types": (torch.arange(atoms, device="cuda") % 3 > 0).int(),
        "neighbors": ((torch.arange(atoms, device="cuda")[:, None] + near) % atoms).int(),
        # one pair in ten crosses a face of the cell
        "images": (images * (uniform(atoms, width) < 0.1)).int(),
        "counts": torch.tensor(COUNTS, dtype=torch.int32, device="cuda").repeat(atoms, 1),
        "d": (direction / direction.norm(dim=-1, keepdim=True) * distance).to(dtype),
        "tangent": random(atoms, width, 3).to(dtype),
        "atom_tangent": random(atoms, 9),
        "rows": random(atoms, width, 4).to(dtype),
        "moments": random(atoms, len(COUNTS), INTERVALS + 5, 4).to(dtype),
        "energy": random(atoms),
        "nearest": uniform(atoms).to(dtype),
        "chain": random(1, 3),
        "tally": random(1, 6),
        "mean": torch.tensor([0.05, 0.04], device="cuda", dtype=dtype),
        "std": torch.tensor([[0.1, 0.08], [0.09, 0.07]], device="cuda", dtype=dtype),
        "mask": torch.zeros(2, 2, dtype=torch.bool, device="cuda"),
        "sel": torch.tensor([46, 92], dtype=torch.int32, device="cuda"),
    }


def liquid(atoms: int) -> tuple[Any, ...]:
    """Arguments of a search in a periodic box of water's density (0.1 atoms/A^3) with a cutoff of 7 A: about 144
    neighbours. The atoms are in the order of boxes of 3.5 A, as in the MD engine."""
    gen = torch.Generator(device="cuda").manual_seed(1)
    edge = (atoms / 0.1) ** (1 / 3)
    x = edge * torch.rand(atoms, 3, generator=gen, device="cuda", dtype=torch.float64)
    boxes = max(1, int(edge / 3.5))
    box = (x / edge * boxes).long()
    x = x[torch.argsort((box[:, 0] * boxes + box[:, 1]) * boxes + box[:, 2], stable=True)].contiguous()
    cell = edge * torch.eye(3, dtype=torch.float64, device="cuda")[None]
    pbc = torch.ones(1, 3, dtype=torch.bool, device="cuda")
    batch = torch.zeros(atoms, dtype=torch.int32, device="cuda")
    types = (torch.arange(atoms, device="cuda") % 3 > 0).int()
    return (x, cell, pbc, batch, types, 7.0, 2, 208, False)


def calls(p: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, tuple[Any, ...]]:
    """Arguments of every op."""
    lists = (p["batch"], p["neighbors"], p["images"])
    rows, norm = (p["counts"], p["types"]), (p["mean"], p["std"], p["mask"])
    switch = (CUTOFF, SMOOTH, 0.0)
    knots = (*switch, S_MAX, 0.0)
    # Arguments of a time step, with a chain of three thermostats.
    x, v, one = p["positions"], p["atom_tangent"], torch.ones(1, dtype=torch.float64, device="cuda")
    step = (x + 1, v[:, 3:6].contiguous(), x[:, 0].abs().contiguous(), p["batch"])
    chains, scalars = (p["chain"], p["chain"], 3 * len(x) * one), (0.05, 0.03, 10.0)
    tensor, six = p["cell"] / p["cell"].abs().max(), torch.zeros(1, 6, device="cuda", dtype=torch.float64)
    cells = (tensor, p["cell"], six, p["chain"], p["chain"], *chains, len(x) * 100 * one)
    pressure, moves = (*scalars, 1e-6, 100.0), torch.zeros(1, 25, device="cuda", dtype=torch.float64)
    return {
        "neighbor_matrix": liquid(len(x)),
        "begin_step": (x, *step, one, one, *chains, x[:0], *scalars, 1.0),
        "end_step": (
            *(x, x + 2, *step, p["energy"], p["nearest"], p["counts"], p["sel"]),
            *(*chains, p["tally"], *scalars),
        ),
        "begin_cell_step": (x, *step, one, six + 1, *cells, *pressure, False),
        "end_cell_step": (
            *(x, x + 2, *step, p["energy"], p["nearest"], p["counts"], p["sel"], moves, p["cell"]),
            *(*cells, p["tally"], *pressure, 7.0, False),
        ),
        "displacements": (p["positions"], p["cell"], *lists, dtype),
        "displacements_backward": (p["tangent"], *lists, 1),
        "pair_forces": (p["tangent"], p["d"], p["batch"], p["neighbors"], 1),
        "pair_forces_backward": (
            *(
                p["atom_tangent"][:, :3].contiguous(),
                p["atom_tangent"][:1].view(1, 3, 3),
                p["atom_tangent"].view(-1, 3, 3),
            ),
            *(p["tangent"], p["d"], p["batch"], p["neighbors"]),
        ),
        "env_mat": (p["d"], *rows, *norm, *switch, False),
        "env_mat_backward": (p["rows"], p["d"], *rows, p["std"], p["mask"], *switch, False),
        "env_mat_backward_backward": (
            p["tangent"],
            p["rows"],
            p["d"],
            *rows,
            p["std"],
            p["mask"],
            *switch,
            False,
        ),
        "spline_moment": (
            p["d"],
            *rows,
            *norm,
            p["mask"],
            p["sel"],
            p["sel"][:0],
            *knots,
            INTERVALS,
            False,
            False,
        ),
        "spline_moment_backward": (p["moments"], p["d"], *rows, *norm, *knots, False, False),
        "spline_moment_jvp": (p["tangent"], p["d"], *rows, *norm, *knots, INTERVALS, False, False),
        "spline_moment_hvp": (p["tangent"], p["moments"], p["d"], *rows, *norm, *knots, False, False),
    }


def milliseconds(work: Callable[[], Any], repeats: int) -> float:
    """The median time of one call, by events on the current stream."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


def bandwidth() -> float:
    """Bytes read and written per second by a copy of 1 GiB."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.nbytes / (1e-3 * milliseconds(lambda: target.copy_(source), 10))


def measure(name: str, args: tuple[Any, ...], atoms: int, speed: float) -> dict[str, Any]:
    op = getattr(OPS, name).default
    result = op(*args)
    tensors = [
        t for t in (*args, *(result if isinstance(result, tuple) else (result,))) if torch.is_tensor(t)
    ]
    del result
    moved = sum(t.nbytes for t in tensors)
    eager = milliseconds(lambda: op(*args), REPLAYS)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            op(*args)
    graph.replay()
    microseconds = 1e3 * milliseconds(graph.replay, REPLAYS) / CALLS
    floor = 1e6 * moved / speed
    return {
        "op": name,
        "atoms": atoms,
        "us": microseconds,
        "us_eager": 1e3 * eager,
        "ns_per_atom": 1e3 * microseconds / atoms,
        "bytes_per_atom": moved / atoms,
        "floor_ns_per_atom": 1e3 * floor / atoms,
        "times_floor": microseconds / floor,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 12288, 98304])
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--commit", default="unknown", help="of the ops that are timed")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)

    speed = bandwidth()
    print(f"{torch.cuda.get_device_name()}, {arguments.dtype}, copies at {speed / 1e12:.2f} TB/s")
    print(f"{'op':<27}{'atoms':>8}{'us':>10}{'eager us':>10}{'ns/atom':>10}{'floor':>9}{'ratio':>8}")
    results = []
    for atoms in arguments.atoms:
        for name, args in calls(water(atoms, dtype), dtype).items():
            r = measure(name, args, atoms, speed)
            results.append(r)
            print(
                f"{name:<27}{atoms:8d}{r['us']:10.2f}{r['us_eager']:10.1f}{r['ns_per_atom']:10.3f}"
                f"{r['floor_ns_per_atom']:9.3f}{r['times_floor']:8.2f}",
                flush=True,
            )
            torch.cuda.empty_cache()
    if arguments.json:
        report = {
            "device": torch.cuda.get_device_name(),
            "dtype": arguments.dtype,
            "torch": torch.__version__,
            "commit": arguments.commit,
            "date": datetime.date.today().isoformat(),
            "neighbors": COUNTS,
            "basis": INTERVALS + 5,
            "copy_bytes_per_second": speed,
            "results": results,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
