"""Attention on sequences of different lengths on a GPU, beside PyTorch's and FlashInfer's functions for it.

    python benchmarks/ragged_attention.py [--peers [NAME ...]] [--cases bf16 fp32 dpa1] [--commit HASH] [--json FILE]

2,048 sequences of lengths uniform in 16 to 200, 4 heads x 64 and 1 x 128, forward and forward + backward; and a layer
of DPA-1: 12,288 sequences of about 90 rows, one head of 128, a gate of 3, a switch, absent keys. Each time is the
median of replays of a CUDA graph of several calls, if the function can be captured, else of calls between events.
Errors are norms of differences from float64, relative to its norm, for the first sequences.
scaled_dot_product_attention gets padded input; padding is not counted. FlashInfer's ragged prefill, which has no
backward, is timed with its plan made before, like ours. The floor is the time to read every input and write every
result once, at the bandwidth of a copy of 1 GiB, measured first.
"""

import argparse
import datetime
import functools
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mdops  # noqa: F401  (registers the ops)
from mdops.ops import ragged_plan

OPS = torch.ops.mdops
REPLAYS = 15


def lengths_of(count: int, low: int, high: int) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(low, high + 1, (count,), generator=generator).tolist()


def timed(function: Callable[[], Any], calls: int = 5) -> float:
    """Milliseconds of a call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(calls):
                function()
    except RuntimeError:
        torch.cuda.synchronize()
        graph = None
    found = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if graph is not None:
            graph.replay()
        else:
            for _ in range(calls):
                function()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / calls)
    return statistics.median(found)


def copy_bandwidth() -> float:
    """Bytes read and written per millisecond."""
    a = torch.empty(1 << 28, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() * 4 / timed(lambda: b.copy_(a))


class Problem:
    """Random arguments of the op."""

    def __init__(self, lengths: list[int], heads: int, width: int, dtype: torch.dtype, dpa1: bool):
        generator = torch.Generator(device="cuda").manual_seed(0)
        self.lengths, self.heads, self.width = lengths, heads, width
        ends = [0, *itertools.accumulate(lengths)]
        self.rows = ends[-1]
        self.offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

        self.q, self.k, self.v, self.grad = (random(self.rows, heads, width) for _ in range(4))
        self.longest = max(lengths)
        self.plan = ragged_plan(
            self.offsets, max_total=self.rows, max_batch=len(lengths), max_length=self.longest
        ).items
        self.gate = torch.nn.functional.normalize(random(self.rows, 3), dim=1) if dpa1 else None
        self.switch = torch.rand(self.rows, device="cuda", generator=generator).to(dtype) if dpa1 else None
        self.absent = torch.full((len(lengths),), 30.0, device="cuda") if dpa1 else None
        self.scale, self.shift = width**-0.5, 20.0 if dpa1 else 0.0

    def arguments(self, matmul: str) -> tuple[Any, ...]:
        optional = (None, self.gate, self.switch, self.absent)
        return (self.offsets, self.plan, *optional, self.scale, self.shift, self.longest, matmul)

    def forward(self, matmul: str) -> tuple[torch.Tensor, torch.Tensor]:
        return OPS.ragged_attention(self.q, self.k, self.v, *self.arguments(matmul))

    def backward(self, saved: tuple[torch.Tensor, torch.Tensor], matmul: str) -> tuple[torch.Tensor, ...]:
        inputs = (self.grad, self.q, self.k, self.v, *saved)
        return OPS.ragged_attention_backward(*inputs, *self.arguments(matmul))

    def floor(self, bandwidth: float) -> tuple[float, float]:
        tensor = self.q.numel() * self.q.element_size()
        return 4 * tensor / bandwidth, (4 + 8) * tensor / bandwidth

    def errors(self, matmul: str) -> list[float]:
        """Errors of the result and of the gradients of q, k and v, for the first sequences."""
        count = min(len(self.lengths), 40)
        rows = sum(self.lengths[:count])
        part = Problem.__new__(Problem)
        vars(part).update(vars(self))
        part.lengths, part.offsets = self.lengths[:count], self.offsets[: count + 1]
        for name in ("q", "k", "v", "grad", "gate", "switch"):
            x = getattr(self, name)
            setattr(part, name, None if x is None else x[:rows].contiguous())
        part.absent = None if self.absent is None else self.absent[:count]
        found = []
        for p in (part, part.as_double()):
            p.plan = ragged_plan(p.offsets, max_total=rows, max_batch=count, max_length=self.longest).items
            saved = p.forward(matmul)
            found.append([saved[0], *p.backward(saved, matmul)[:3]])
        return [float((a.double() - b).norm() / b.norm()) for a, b in zip(*found, strict=True)]

    def as_double(self) -> "Problem":
        other = Problem.__new__(Problem)
        for name, x in vars(self).items():
            floating = isinstance(x, torch.Tensor) and x.is_floating_point()
            setattr(other, name, x.double() if floating else x)
        return other


def with_backward(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], grad: torch.Tensor):
    leaves = [x.detach().requires_grad_() for x in inputs]

    def run() -> Any:
        return torch.autograd.grad(function(*leaves), leaves, grad)

    return run


# A function of q, k and v, and these; with the result's gradient if there is a backward.
Peer = tuple[Callable[..., torch.Tensor], list[torch.Tensor]]


def varlen_peer(p: Problem) -> Peer:
    from torch.nn.attention.varlen import varlen_attn

    ends, longest = p.offsets, p.longest
    return lambda q, k, v: varlen_attn(q, k, v, ends, ends, longest, longest), [p.q, p.k, p.v, p.grad]


def padded_peer(p: Problem) -> Peer:
    count, place = len(p.lengths), torch.arange(p.longest, device="cuda")
    real = place[None] < torch.tensor(p.lengths, device="cuda")[:, None]

    def padded(x: torch.Tensor) -> torch.Tensor:
        full = x.new_zeros(count, p.longest, p.heads, p.width)
        full[real] = x
        return full.transpose(1, 2).contiguous()

    attention, mask = torch.nn.functional.scaled_dot_product_attention, real[:, None, None, :]
    tensors = [padded(x) for x in (p.q, p.k, p.v, p.grad)]
    return lambda q, k, v: attention(q, k, v, attn_mask=mask), tensors


def flex_peer(p: Problem) -> Peer:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    document = torch.repeat_interleave(torch.tensor(p.lengths, device="cuda"))
    blocks = torch.compile(create_block_mask)(
        lambda b, h, i, j: document[i] == document[j], None, None, p.rows, p.rows, device="cuda"
    )
    flex = torch.compile(flex_attention, dynamic=False)
    tensors = [x.transpose(0, 1)[None] for x in (p.q, p.k, p.v, p.grad)]
    return lambda q, k, v: flex(q, k, v, block_mask=blocks), tensors


def flashinfer_peer(p: Problem, backend: str) -> Peer:
    """With its plan made before the timing, like ours; its kernels are compiled at the first plan."""
    import flashinfer

    workspace = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, backend=backend)
    wrapper.plan(
        p.offsets, p.offsets, p.heads, p.heads, p.width, sm_scale=p.scale, q_data_type=p.q.dtype, causal=False
    )
    out, ours = wrapper.run(p.q, p.k, p.v).double(), p.forward("float32")[0].double()
    if not (out - ours).norm() < 1e-2 * ours.norm():
        raise ValueError("another result than ours")
    return wrapper.run, [p.q, p.k, p.v]


PEERS: dict[str, Callable[[Problem], Peer]] = {
    "varlen_attn": varlen_peer,
    "padded": padded_peer,
    "flex_attention": flex_peer,
    "flashinfer_fa2": functools.partial(flashinfer_peer, backend="fa2"),
    "flashinfer_fa3": functools.partial(flashinfer_peer, backend="fa3"),
}
NARROW_ONLY = {"varlen_attn", "flashinfer_fa2", "flashinfer_fa3"}  # without float32


def peers(p: Problem, names: list[str]) -> dict[str, tuple[float, float | None]]:
    """Milliseconds, forward and forward + backward, of the other functions that are installed and run here."""
    found: dict[str, tuple[float, float | None]] = {}
    for name in names:
        if p.q.dtype == torch.float32 and name in NARROW_ONLY:
            continue
        try:
            function, tensors = PEERS[name](p)
            inputs, grad = tensors[:3], tensors[3:]
            with torch.no_grad():
                forward = timed(lambda f=function, x=inputs: f(*x))
            found[name] = (forward, timed(with_backward(function, inputs, grad[0]), 2) if grad else None)
        except Exception as error:  # any reason why a function does not run
            print(f"{name}: {error!r:.200}", file=sys.stderr)
            torch.cuda.synchronize()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, help="measure others, too: these, or all of them"
    )
    parser.add_argument("--cases", nargs="+", default=["bf16", "fp32", "dpa1"])
    parser.add_argument("--commit", default="")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, copies {bandwidth / 1e9:.2f} TB/s")
    rows = []
    ragged, layer = lengths_of(2048, 16, 200), lengths_of(12288, 70, 110)
    problems = [
        ("bf16", ragged, 4, 64, torch.bfloat16, ["float32"]),
        ("bf16", ragged, 1, 128, torch.bfloat16, ["float32"]),
        ("fp32", ragged, 4, 64, torch.float32, ["float32", "tf32"]),
        ("fp32", ragged, 1, 128, torch.float32, ["float32", "tf32"]),
        ("dpa1", layer, 1, 128, torch.float32, ["float32", "tf32"]),
    ]
    for name, lengths, heads, width, dtype, choices in problems:
        if name not in args.cases:
            continue
        p = Problem(lengths, heads, width, dtype, name == "dpa1")
        for matmul in choices:
            saved = p.forward(matmul)
            forward = timed(lambda p=p, matmul=matmul: p.forward(matmul))
            backward = timed(lambda p=p, matmul=matmul, saved=saved: p.backward(saved, matmul))
            row = {
                "case": name,
                "heads": heads,
                "width": width,
                "rows": p.rows,
                "sequences": len(lengths),
                "matmul": matmul,
                "forward_ms": forward,
                "backward_ms": backward,
                "floor_ms": p.floor(bandwidth),
                "errors": p.errors(matmul),
            }
            rows.append(row)
            both, floor = forward + backward, row["floor_ms"]
            line = f"{name:5s} {heads} x {width:3d} {matmul:8s} {forward:7.3f} {both:7.3f} ms"
            line += f"   floor {floor[0]:.3f} {floor[1]:.3f}   errors " + " ".join(
                f"{e:.1e}" for e in row["errors"]
            )
            if name == "dpa1":
                line += f"   {1e3 * both / len(lengths):.3f} us a sequence"
            print(line, flush=True)
        if args.peers is not None and name != "dpa1":
            rows[-1]["peers"] = peers(p, args.peers or list(PEERS))
            for peer, times in rows[-1]["peers"].items():
                print(f"      {peer:20s}", *(f"{t:7.3f}" for t in times if t), "ms", flush=True)
    if args.json:
        about = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "commit": args.commit,
            "date": datetime.date.today().isoformat(),
            "bandwidth_bytes_per_ms": bandwidth,
            "rows": rows,
        }
        args.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
