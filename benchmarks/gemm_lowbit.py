"""Low-bit products beside float32 products and PyTorch's best low-bit products on the same machine.

    python benchmarks/gemm_lowbit.py [--device cuda] [--sizes 64 256 1024 4096] [--rows 16 64 256] [--json FILE]

Square products of each size, and products of --rows rows with matrices of 4,096 x 4,096. On a GPU, calls are captured
in a CUDA graph, and the median of its replays, from CUDA events, is divided by their number; on a CPU, times are
medians of calls. All variants are timed in turn, so that they are slowed equally if the chip becomes slower.

  int8, columns   b as the transpose of a contiguous matrix, the order for cuBLASLt; int8, rows: b contiguous
  _int_mm         cuBLASLt's or oneDNN's int8 product, to int32, the better of both orders
  _scaled_mm      cuBLASLt's float8 product to bfloat16, sums in float32 ("exact") or in the tensor cores ("fast")

"share" is relative to the peak: on an H100 (SXM) 1,979 TOP/s in int8 and float8, from NVIDIA's data sheet; elsewhere
--peak. "floor" is the larger of two times: arithmetic at that peak, and bytes at the memory's bandwidth, which is
measured on a GPU. `--tiles` also times every kernel that a GPU may choose, or the named ones, in turn with the others;
the files are long. `--shorten FILE --json SHORT` writes such a file again without what follows from the seconds, and
times nothing.
"""

import argparse
import datetime
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import machine

from mdops import ops

PEAK = {"NVIDIA H100 80GB HBM3": 1979e12}
TILES = [
    *("small", "middle", "large", "thin", "thin_pair"),
    *("wide_64", "wide_128", "wide_256", "pair_128", "pair_256"),
]
WIDE = 4096
ROUNDS = 5


def factors(m: int, n: int, k: int, device: str) -> dict[str, torch.Tensor]:
    gen = torch.Generator(device=device).manual_seed(0)
    a = torch.randint(-128, 128, (m, k), generator=gen, device=device, dtype=torch.int8)
    rows = torch.randint(-128, 128, (k, n), generator=gen, device=device, dtype=torch.int8)
    x, y = (torch.randn(s, generator=gen, device=device) for s in ((m, k), (k, n)))
    f8 = torch.float8_e4m3fn
    return {
        "a": a,
        "rows": rows,
        "columns": rows.t().contiguous().t(),
        "ternary": ops.pack_ternary(rows.clamp(-1, 1)),
        "x": x,
        "y": y,
        "x16": x.bfloat16(),
        "y16": y.bfloat16(),
        "x8": x.to(f8),
        "y8": y.to(f8).t().contiguous().t(),
        "y8_rows": y.to(f8).contiguous(),
        "one": torch.ones((), device=device),
        "a_scale": torch.rand(m, generator=gen, device=device),
        "b_scale": torch.rand(n, generator=gen, device=device),
        "groups": torch.rand(max(1, k // 128), n, generator=gen, device=device),
    }


def calls(f: dict[str, torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Our products and the others, by name."""
    scaled = (f["a_scale"], f["b_scale"])
    bf16 = torch.bfloat16
    ours = {
        "int8, columns": lambda: ops.gemm_lowbit(f["a"], f["columns"], *scaled),
        "int8, columns, bf16": lambda: ops.gemm_lowbit(f["a"], f["columns"], *scaled, out_dtype=bf16),
        "int8, rows": lambda: ops.gemm_lowbit(f["a"], f["rows"], *scaled),
        "int8, groups of 128": lambda: ops.gemm_lowbit(f["a"], f["columns"], f["a_scale"], f["groups"]),
        "ternary": lambda: ops.gemm_lowbit(f["a"], f["ternary"], *scaled),
        "float8, columns, bf16": lambda: ops.gemm_lowbit(f["x8"], f["y8"], *scaled, out_dtype=bf16),
        "float8, rows, bf16": lambda: ops.gemm_lowbit(f["x8"], f["y8_rows"], *scaled, out_dtype=bf16),
    }
    others: dict[str, Callable[[], Any]] = {
        "float32 mm": lambda: f["x"] @ f["y"],
        "bfloat16 mm": lambda: f["x16"] @ f["y16"],
        "_int_mm, columns": lambda: torch._int_mm(f["a"], f["columns"]),
        "_int_mm, rows": lambda: torch._int_mm(f["a"], f["rows"]),
    }
    if f["a"].is_cuda:
        one = f["one"].reshape(1)

        def scaled_mm(fast: bool) -> Any:
            return torch._scaled_mm(f["x8"], f["y8"], one, one, out_dtype=bf16, use_fast_accum=fast)

        others |= {"_scaled_mm, exact": lambda: scaled_mm(False), "_scaled_mm, fast": lambda: scaled_mm(True)}
    return ours | others


def in_tile(tile: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call with the tile of that name."""

    def run() -> Any:
        os.environ["MDOPS_LOWBIT_TILE"] = tile
        try:
            return call()
        finally:
            del os.environ["MDOPS_LOWBIT_TILE"]

    return run


def in_tiles(
    named: dict[str, Callable[[], Any]], tiles: list[str], size: int
) -> dict[str, Callable[[], Any]]:
    """Our calls with each tile, except large products with small tiles."""
    return {
        f"{name} [{tile}]": in_tile(tile, call)
        for tile in tiles
        for name, call in named.items()
        if name.startswith(("int8", "ternary", "float8")) and (tile != "small" or size < 2e11)
    }


def works(call: Callable[[], Any]) -> bool:
    """Whether PyTorch supports factors of this size."""
    try:
        call()
    except RuntimeError as error:
        if "mdops" in str(error):
            raise
        return False
    return True


class Replays:
    """Calls in a CUDA graph."""

    def __init__(self, call: Callable[[], Any], floor: float) -> None:
        self.calls = max(2, min(20, int(2e-3 / max(floor, 5e-6))))
        self.graph = torch.cuda.CUDAGraph()
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for _ in range(self.calls):
                call()

    def seconds(self) -> float:
        self.graph.replay()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        events[0].record()
        for event in events[1:]:
            self.graph.replay()
            event.record()
        torch.cuda.synchronize()
        return 1e-3 * statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events)) / self.calls


class Calls:
    """Calls one by one, on a CPU."""

    def __init__(self, call: Callable[[], Any], floor: float) -> None:
        self.call, self.repeats = call, 3
        begin = time.perf_counter()
        call()
        self.repeats = max(1, min(50, int(0.1 / (time.perf_counter() - begin + 1e-9))))

    def seconds(self) -> float:
        times = []
        for _ in range(self.repeats):
            begin = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)


def seconds_of(named: dict[str, Callable[[], Any]], floor: float, device: str) -> dict[str, float]:
    kind = Replays if device == "cuda" else Calls
    timed = {name: kind(call, floor) for name, call in named.items() if works(call)}
    rounds = [{name: one.seconds() for name, one in timed.items()} for _ in range(ROUNDS)]
    return {name: statistics.median(r[name] for r in rounds) for name in timed}


def bandwidth() -> float:
    """Bytes read and written per second by a copy of 1 GiB."""
    source = torch.randn(1 << 28, device="cuda")
    target = torch.empty_like(source)
    replays = Replays(lambda: target.copy_(source), 1e-3)
    return 2 * source.nbytes / replays.seconds()


def floor_of(m: int, n: int, k: int, peak: float | None, speed: float | None) -> float:
    """A lower bound, s: arithmetic at the peak, or bytes (int8 input, float32 output) at `speed`."""
    arithmetic = 2 * m * n * k / peak if peak else 0.0
    return max(arithmetic, (m * k + k * n + 4 * m * n) / speed if speed else 0.0)


def shortened(report: dict[str, Any]) -> str:
    """The report as JSON, a result per line, without what follows from its seconds, the peak and the bandwidth."""
    results = [{key: r[key] for key in ("m", "n", "k", "name", "seconds")} for r in report["results"]]
    lines = ",\n".join("  " + json.dumps(r) for r in results)
    return json.dumps(report | {"results": []}, indent=1).replace("[]", f"[\n{lines}\n ]") + "\n"


def best(seconds: dict[str, float], *begin: str) -> float | None:
    return min((s for name, s in seconds.items() if name.startswith(begin)), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda")
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--rows", type=int, nargs="*", default=[16, 64, 256, 512, 1024])
    parser.add_argument("--peak", type=float, help="operations per second of the machine in int8 and float8")
    parser.add_argument("--tiles", nargs="*", choices=TILES, help="time every kernel of the GPU, or some")
    parser.add_argument("--commit", help="of the ops that are timed")
    parser.add_argument("--shorten", type=Path, metavar="FILE", help="write the results of FILE to --json")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.shorten:
        if not arguments.json:
            parser.error("--shorten wants --json")
        arguments.json.write_text(shortened(json.loads(arguments.shorten.read_text())))
        return
    device = arguments.device
    found = machine(device, arguments.commit)
    peak = arguments.peak or PEAK.get(found.get("gpu", ""))
    speed = bandwidth() if device == "cuda" else None
    shapes = [(n, n, n) for n in arguments.sizes] + [(m, WIDE, WIDE) for m in arguments.rows]
    torch.backends.cuda.matmul.allow_tf32 = False
    results = []
    for m, n, k in shapes:
        floor = floor_of(m, n, k, peak, speed)
        f = factors(m, n, k, device)
        named = calls(f)
        if arguments.tiles is not None and device == "cuda":
            named |= in_tiles(named, arguments.tiles or TILES, m * n * k)
        seconds = seconds_of(named, floor, device)
        int8, float8 = best(seconds, "_int_mm"), best(seconds, "_scaled_mm, exact")
        fast, single = best(seconds, "_scaled_mm"), seconds["float32 mm"]
        for name, s in seconds.items():
            rate = 2 * m * n * k / s
            peer = float8 if "float8" in name or "_scaled" in name else int8
            results.append(
                {
                    "m": m,
                    "n": n,
                    "k": k,
                    "name": name,
                    "seconds": s,
                    "operations_per_second": rate,
                    "share_of_peak": rate / peak if peak else None,
                    "times_floor": s / floor if floor else None,
                    "of_float32": s / single,
                    "of_best_low_bit": s / peer if peer else None,
                    "of_fast_float8": s / fast if fast and peer is float8 else None,
                }
            )
            print(
                f"{m} x {n} x {k}  {name:42}{1e6 * s:10.1f} us{rate / 1e12:9.2f} TOP/s"
                + (f"{100 * rate / peak:7.1f}% of the peak{s / floor:8.2f} floors" if peak else "")
                + f"{single / s:8.2f} times float32"
                + (f"{peer / s:7.2f} times the best peer" if peer else ""),
                flush=True,
            )
    if arguments.json:
        report = found | {
            "device": device,
            "date": datetime.date.today().isoformat(),
            "peak": peak,
            "copy_bytes_per_second": speed,
            "results": results,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
