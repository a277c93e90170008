"""Calls every op with broken inputs: mutations of `mdops.testing.op_samples`.

    .venv/bin/python scripts/fuzz_ops.py [--device cpu|cuda] [--seconds 60 | --calls N] [--seed 0] [--only NUMBER]

Every call must end in a Python exception, or in results of the documented shapes and dtypes (those of the op's fake
kernel), and must not change its inputs. Repeated, it must give the same bits (on a CPU with other values in
uninitialised memory). The calls run in a child process with limited memory; a call that kills it, or
does not end, is reported like other findings, with its number and its arguments. Call NUMBER of a seed is the
same in every run, and `--only NUMBER` makes only this call. Exit status: 0 without findings, 1 with some.

`--samples module:function` uses other samples, such as those of your own ops; the function gets a device and a
dtype.
"""

import argparse
import collections
import contextlib
import ctypes
import dataclasses
import importlib
import json
import math
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

STARTING = 600  # seconds that a child may take before its first call and after its last one
MEMORY = 3 << 30  # bytes that calls may allocate, in addition to an idle child's
FINDINGS = 20  # stop after this number
M_PERTURB = -6  # from glibc's malloc.h
REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, OverflowError, MemoryError, NotImplementedError)

INTEGERS = (-(2**63), -(2**31), -1, 0, 1, 3, 2**31 - 1, 2**31, 2**32 + 2, 2**62, 2**63 - 1)
FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-300, 1e-30, 1.0, 1e9, 1e30, 1e300, 2.0**31, 2.0**63)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on")
    parser.add_argument("--calls", type=int, help="make so many instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="make this call alone, and show it")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="a call that takes so many seconds hangs"
    )
    parser.add_argument("--samples", default="mdops.testing:op_samples", metavar="MODULE:FUNCTION")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "2", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    import torch  # noqa: F401  (takes seconds; all children are forked afterwards)

    if args.only is not None:
        print(describe(args, args.only), flush=True)
        args.calls = 1
    raise SystemExit(watch(args))


# The parent. It neither imports ops nor calls PyTorch.


@dataclasses.dataclass
class Finding:
    number: int
    what: str


def watch(args: argparse.Namespace) -> int:
    """Keeps a child running until the time is over, and prints findings; returns the exit status."""
    findings: list[Finding] = []
    counts: collections.Counter[str] = collections.Counter()
    number, calls, start = args.only or 0, 0, time.monotonic()
    while len(findings) < FINDINGS:
        seconds = args.seconds - (time.monotonic() - start)
        if (args.calls is None and seconds <= 0) or args.calls == calls:
            break
        child = Child(args, number, seconds, None if args.calls is None else args.calls - calls)
        calls += child.calls
        findings += child.findings
        counts += child.counts
        if child.problem is None:
            break
        # With --only, the call was printed before.
        call = "" if args.only is not None else f"\n{describe(args, child.last)}"
        findings.append(Finding(child.last, f"{child.problem}{call}"))
        number = child.last + 1
    for finding in findings[:FINDINGS]:
        again = " ".join([Path(__file__).name, *common(args), "--only", str(finding.number)])
        print(f"call {finding.number}: {finding.what}\n    again: {again}")
    shown = f"{counts['result']} gave results, {counts['refused']} were refused"
    print(f"seed {args.seed}, {args.device}: {calls} calls, {shown}, {len(findings)} findings")
    return 1 if findings else 0


class Child:
    """A process that makes calls until it is done, dies or hangs.

    Attributes:
        last: the number of the last call that it began. calls: how many it began.
        findings: those that it reported. counts: how its calls ended.
        problem: how it failed; None if it finished.
    """

    def __init__(self, args: argparse.Namespace, first: int, seconds: float, most: int | None) -> None:
        self.last, self.calls = first, 0
        self.findings: list[Finding] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self.problem: str | None = None
        with tempfile.TemporaryFile() as said_here:  # a pipe without a reader would fill up
            with forked(lambda: work(args, first, seconds, most), said_here) as (process, told):
                self._read(process, told, args.patience)
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if self.problem is None and code != 0:
                how = f"signal {-code}" if code < 0 else f"exit status {code}"
                said_here.seek(0)
                said = said_here.read().decode(errors="replace").strip()
                self.problem = f"the process died of {how}" + (f": {said[-2000:]}" if said else "")

    def _read(self, process: int, told: int, patience: float) -> None:
        """Reads a line of JSON for each call begun or ended; kills a process that writes nothing for too long."""
        buffer = b""
        while True:
            # Before its first call, a child imports the ops.
            if not select.select([told], [], [], patience if self.calls else STARTING)[0]:
                os.kill(process, signal.SIGKILL)
                self.problem = f"no end after {patience:g} s"
                return
            chunk = os.read(told, 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                event, value = json.loads(line)
                if event == "begin":
                    self.last = value
                    self.calls += 1
                elif event == "end":
                    patience = STARTING
                elif event == "finding":
                    self.findings.append(Finding(self.last, value))
                else:
                    self.counts[event] += 1


def common(args: argparse.Namespace) -> list[str]:
    """The arguments that determine a call."""
    return ["--device", args.device, "--seed", str(args.seed), "--samples", args.samples]


def describe(args: argparse.Namespace, number: int) -> str:
    """The call as text. A separate process makes the samples, because their ops may be broken."""

    def show() -> None:
        os.write(1, Fuzzer(args.samples, args.device, args.seed).describe(number).encode())

    with tempfile.TemporaryFile() as said_here:
        shown = b""
        with forked(show, said_here) as (process, told):
            while chunk := os.read(told, 1 << 16):
                shown += chunk
        os.waitpid(process, 0)
        said_here.seek(0)
        return (shown or said_here.read()).decode(errors="replace").rstrip()


@contextlib.contextmanager
def forked(job: Callable[[], None], said_here: IO[bytes]) -> Iterator[tuple[int, int]]:
    """The id of a child that runs the job, and the read end of a pipe with its output. Its error messages go
    to the file."""
    told, tells = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.dup2(tells, 1), os.dup2(said_here.fileno(), 2)
            os.close(told), os.close(tells)
            job()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(tells)
    try:
        yield process, told
    finally:
        os.close(told)


# The child.


def work(args: argparse.Namespace, first: int, seconds: float, most: int | None) -> None:
    """Makes calls and reports each, until the time is over or there were enough."""
    fuzzer = Fuzzer(args.samples, args.device, args.seed)
    # Imports what the first calls of fake kernels need, which takes seconds.
    for sample in {sample.op: sample for sample in fuzzer.samples}.values():
        with contextlib.suppress(*REFUSALS):
            fake_results(sample, list(sample.args))
    limit_memory(args.device)
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end if most is None else number < first + most:
        tell("begin", number)
        tell(*fuzzer.outcome(number))
        number += 1
    tell("end", number)


def tell(event: str, value: Any) -> None:
    os.write(1, json.dumps([event, value]).encode() + b"\n")


def limit_memory(device: str) -> None:
    """Makes calls fail that need too much memory, before they use all of the machine's or the GPU's."""
    import torch

    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, MEMORY / total))
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


class Fuzzer:
    """The calls of a seed."""

    def __init__(self, samples: str, device: str, seed: int) -> None:
        import torch

        torch.set_num_threads(2)
        module, _, function = samples.partition(":")
        make = getattr(importlib.import_module(module), function)
        self.device, self.seed = device, seed
        self.samples = [s for dtype in (torch.float64, torch.float32) for s in make(device, dtype)]
        self.samples_of: dict[str, list[Any]] = {op: [] for op in sorted({s.op for s in self.samples})}
        for sample in self.samples:
            self.samples_of[sample.op].append(sample)

    def call(self, number: int) -> tuple[Any, list[Any], list[str]]:
        """Sample, arguments and changes of call `number`."""
        rng = random.Random(f"{self.seed}/{number}")
        # Every op gets the same number of calls, whether it has many samples or few.
        ops = list(self.samples_of)
        sample = rng.choice(self.samples_of[ops[number % len(ops)]])
        args, changes = [copied(a) for a in sample.args], []
        for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
            if args:
                k = rng.randrange(len(args))
                args[k], change = mutated(args[k], rng)
                changes.append(f"argument {k}: {change}")
        return sample, args, changes

    def outcome(self, number: int) -> tuple[str, Any]:
        """Makes the call: ("result" or "refused", None), or ("finding", what is wrong)."""
        import torch

        sample, args, _ = self.call(number)
        before = [image(tensor) for tensor in tensors(args)]
        try:
            self._fill_memory(0x55)
            results = sample.function(*args)
            self._fill_memory(0xAA)
            again = sample.function(*args)
            if self.device == "cuda":
                torch.cuda.synchronize()
        except REFUSALS as error:
            if "CUDA error" in str(error):
                # The context is lost, so that later calls would fail, too.
                raise
            return "refused", None
        if [image(tensor) for tensor in tensors(args)] != before:
            problem: str | None = "changed an argument"
        else:
            problem = wrong_shapes(sample, args, results) or different_bits(sample, results, again)
        return ("finding", f"{problem}\n{self.describe(number)}") if problem else ("result", None)

    def _fill_memory(self, byte: int) -> None:
        """Makes glibc fill memory with this byte before it is used."""
        if self.device == "cpu":
            ctypes.CDLL(None).mallopt(M_PERTURB, byte)

    def describe(self, number: int) -> str:
        """The call as text."""
        sample, args, changes = self.call(number)
        lines = [f"    {sample.op}; {'; '.join(changes) or 'unchanged'}"]
        return "\n".join(lines + [f"        {k}: {text(a)}" for k, a in enumerate(args)])


def wrong_shapes(sample: Any, args: list[Any], results: Any) -> str | None:
    """How shapes and dtypes of results differ from those of the fake kernel. Results in the kernels' own layout are
    left out, because their shapes depend on the device."""
    try:
        expected = [(known_sizes(tensor), tensor.dtype) for tensor in tensors([fake_results(sample, args)])]
    except REFUSALS as error:
        return f"gave results, and its fake kernel says {type(error).__name__}: {error}"
    found = list(tensors([results]))
    if len(found) != len(expected):
        return f"gave {len(found)} results, expected {len(expected)}"
    for k, (one, (shape, dtype)) in enumerate(zip(found, expected, strict=True)):
        fits = len(shape) == one.dim() and all(n in (None, m) for n, m in zip(shape, one.shape, strict=True))
        fits = fits or k in getattr(sample, "opaque", ())
        if not fits or dtype != one.dtype:
            return f"result {k} is {kind(one)}, expected {dtype} {shape}"
    return None


def different_bits(sample: Any, results: Any, again: Any) -> str | None:
    """Which result differs in a second call; results in the kernels' own layout may have gaps."""
    for k, (one, two) in enumerate(zip(tensors([results]), tensors([again]), strict=True)):
        if k not in getattr(sample, "opaque", ()) and image(one) != image(two):
            return f"result {k} is another in a second call: {text(one)} and {text(two)}"
    return None


def fake_results(sample: Any, args: list[Any]) -> Any:
    try:
        return sample.function(*each(args, lambda tensor: tensor.to("meta")))
    except RuntimeError as error:
        if "FakeTensors" not in str(error):
            raise
    # Some sizes depend on the data.
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        return sample.function(*each(args, mode.from_tensor))


def known_sizes(tensor: Any) -> list[int | None]:
    """The shape, None for a size that depends on the data."""
    return [size if isinstance(size, int) else None for size in tensor.shape]


def tensors(values: Sequence[Any]) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors(value)


def each(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with each tensor in it changed."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    return [each(v, change) for v in value] if isinstance(value, list | tuple) else value


def copied(value: Any) -> Any:
    return each(value, lambda tensor: tensor.clone())


def image(tensor: Any) -> bytes:
    """The bytes of a tensor's values, NaN included."""
    import torch

    if tensor.device.type == "meta":
        return b""
    flat = tensor.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()


def kind(tensor: Any) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"


def text(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        values = ""
        if value.device.type != "meta" and value.numel() <= 30:
            values = f" {value.detach().cpu().reshape(-1).tolist()}"
        return f"{kind(value)}, strides {list(value.stride())}{values}"
    if isinstance(value, list | tuple):
        inside = [kind(v) if isinstance(v, torch.Tensor) else repr(v) for v in value]
        return f"[{', '.join(inside)}]"
    return repr(value)


# Mutations. Each returns the new value and a name.


def mutated(value: Any, rng: random.Random) -> tuple[Any, str]:
    import torch

    if isinstance(value, torch.Tensor):
        return mutated_tensor(value, rng)
    if isinstance(value, list | tuple) and rng.random() < 0.7 and value:
        items = list(value)
        k = rng.randrange(len(items))
        items[k], change = mutated(items[k], rng)
        return items, f"[{k}] {change}"
    if isinstance(value, list | tuple):
        items = list(value)
        name, new = rng.choice(
            [
                ("without items", []),
                ("without its last", items[:-1]),
                ("twice", items * 2),
                ("its first", items[:1]),
            ]
        )
        return new, name
    if isinstance(value, bool):
        return not value, f"{not value}"
    if isinstance(value, torch.dtype):
        new = rng.choice([torch.float16, torch.float32, torch.float64, torch.int32, torch.complex64])
        return new, f"{new}"
    new = rng.choice(INTEGERS) if isinstance(value, int) else rng.choice(FLOATS)
    if rng.random() < 0.05:
        new = rng.choice([None, "text", True, 0.5, 2**70])
    return new, f"{new!r}"


def mutated_tensor(tensor: Any, rng: random.Random) -> tuple[Any, str]:
    changes = [changed_values, changed_values, changed_values, changed_shape, changed_strides, changed_dtype]
    change = rng.choice(changes)
    if tensor.is_floating_point() and tensor.itemsize == 1 and change is not changed_dtype:
        import torch

        # PyTorch cannot compute with float8, so its bytes are changed.
        new, name = change(tensor.view(torch.uint8), rng)
        return new.view(tensor.dtype) if new.dtype == torch.uint8 else new, name
    return change(tensor, rng)


def changed_values(tensor: Any, rng: random.Random) -> tuple[Any, str]:
    """Some or all elements are set to one value."""
    import torch

    if tensor.dtype == torch.bool:
        return ~tensor, "all other values"
    if tensor.is_complex() or not tensor.numel():
        return tensor, "nothing to change"
    if tensor.is_floating_point():
        value = rng.choice((math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-30, 1e6, 1e30, 1e300))
        value = value if tensor.dtype == torch.float64 else float(torch.tensor(value, dtype=tensor.dtype))
    else:
        info = torch.iinfo(tensor.dtype)
        value = rng.choice((info.min, info.max, -1, -2, 0, 1, 2, 5, 1000, 1 << 20, info.max - 1))
        value = max(info.min, min(info.max, value))
    flat = tensor.clone().reshape(-1)
    if rng.random() < 0.3:
        flat.fill_(value)
        return flat.reshape(tensor.shape), f"all {value}"
    places = [rng.randrange(len(flat)) for _ in range(rng.choice((1, 1, 3)))]
    flat[torch.tensor(places, device=flat.device)] = value
    return flat.reshape(tensor.shape), f"{value} at {places}"


def changed_shape(tensor: Any, rng: random.Random) -> tuple[Any, str]:
    """Makes an axis longer, shorter or empty, or adds or removes one."""
    if not tensor.dim():
        return tensor[None], "one axis"
    axis = rng.randrange(tensor.dim())
    n, many = tensor.shape[axis], 100 if tensor.numel() < 10_000 else 1
    name, new = rng.choice(
        [
            (f"axis {axis} empty", lambda: tensor.narrow(axis, 0, 0)),
            (f"axis {axis} shorter", lambda: tensor.narrow(axis, 0, max(n - 1, 0))),
            (f"axis {axis} of one", lambda: tensor.narrow(axis, 0, min(n, 1))),
            (f"axis {axis} twice", lambda: tensor.repeat_interleave(2, axis)),
            (f"axis {axis} {many} times", lambda: tensor.repeat_interleave(many, axis)),
            ("an axis more", lambda: tensor[None]),
            ("an axis less", lambda: tensor.flatten(0, 1) if tensor.dim() > 1 else tensor.sum()),
            ("transposed", lambda: tensor.transpose(0, -1)),
            ("no axes", lambda: tensor.sum()),
        ]
    )
    return new(), name


def changed_strides(tensor: Any, rng: random.Random) -> tuple[Any, str]:
    """The same shape with memory in another order, or with overlapping memory."""
    import torch

    if not tensor.dim() or not tensor.numel():
        return tensor, "nothing to change"
    order = list(range(tensor.dim()))
    rng.shuffle(order)
    name = rng.choice(("spread", "permuted", "expanded", "unaligned"))
    if name == "permuted":
        back = [order.index(k) for k in range(len(order))]
        return tensor.permute(order).contiguous().permute(back), name
    if name == "expanded":
        return tensor.narrow(order[0], 0, 1).expand(tensor.shape), name
    step = 2 if name == "spread" else 1
    big = torch.zeros(step * tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    view = (
        big[1:][::step].view_as(tensor)
        if step == 1
        else big[1::step].as_strided(tensor.shape, [step * s for s in tensor.contiguous().stride()], 1)
    )
    view.copy_(tensor)
    return view, name


def changed_dtype(tensor: Any, rng: random.Random) -> tuple[Any, str]:
    import torch

    if rng.random() < 0.1:
        return tensor.to("meta"), "on the device meta"
    dtypes = (
        torch.float16,
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
    )
    dtype = rng.choice(dtypes)
    numbers = tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
    return torch.nan_to_num(numbers).to(dtype) if tensor.is_floating_point() else tensor.to(dtype), f"{dtype}"


if __name__ == "__main__":
    main()
