"""Runs attention's GPU kernels on the CPU, thread by thread, and compares them with PyTorch's operations.

    python scripts/emulate_attention.py [--cuda DIR] [--only TEXT]

Use it to test changes of the kernels' indices, barriers and layouts without a GPU: g++ compiles them with stand-ins for
the instructions of a warp (scripts/gpu_emulator). It needs CUDA's headers, beside nvcc unless `--cuda` names their
folder. It cannot detect races and errors that depend on the chip's arithmetic.
"""

import argparse
import ctypes
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests" / "ops"))

from attention_reference import attention  # noqa: E402
from gpu_emulator.compile import compiled, cuda_headers  # noqa: E402

from mdops.ops import ragged_plan  # noqa: E402

POINTERS = [
    *("q", "k", "v", "bias", "gate", "switches", "absent", "offsets", "plan", "out", "logsumexp", "grad_out"),
    *("grad_q", "grad_k", "grad_v", "grad_bias", "grad_gate", "grad_switch", "grad_grad_out"),
    *("along_q", "along_k", "along_v", "along_bias", "along_gate", "along_switch"),
]
INTEGERS = [
    *(
        "rows",
        "heads",
        "width",
        "value_width",
        "sequences",
        "gates",
        "items",
        "max_length",
        "bias_size",
        "parts",
    ),
    *("shared_bytes", "multiprocessors"),
]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 6e-6, torch.float64: 1e-13, torch.float16: 2e-2, torch.bfloat16: 5e-2}
H100 = 232448  # bytes of shared memory


class Call(ctypes.Structure):
    """Call of scripts/gpu_emulator/attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int64) for name in INTEGERS),
        ("scale", ctypes.c_double),
        ("shift", ctypes.c_double),
    ]


LAYER = [
    *(
        "g",
        "project",
        "project_bias",
        "out",
        "out_bias",
        "norm",
        "norm_bias",
        "o",
        "grad",
        "grad_q",
        "grad_k",
    ),
    *("grad_v", "q", "k", "v", "result", "grad_o", "delta", "grad_g", "last"),
]


class LayerCall(ctypes.Structure):
    """LayerCall of scripts/gpu_emulator/attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in LAYER),
        *((name, ctypes.c_int64) for name in ("rows", "features", "width", "normalize")),
    ]


MOMENTS = [
    *("rows", "environment", "norm", "norm_bias", "gate", "switch", "absent", "grad"),
    *(f"{name}_{k}" for name in ("inner", "out", "bias") for k in range(2)),
    *("project", "project_bias", "factors", "offsets", "plan", "moments", "saved"),
    *("grad_rows", "grad_environment", "grad_gate", "grad_switch"),
]


class MomentsCall(ctypes.Structure):
    """MomentsCall of scripts/gpu_emulator/attention.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in MOMENTS),
        *((n, ctypes.c_int64) for n in ("count", "atoms", "layers", "features", "width_0", "width_1")),
        *((n, ctypes.c_int64) for n in ("normalize", "items", "max_length")),
    ]


def errors(
    library: ctypes.CDLL,
    lengths: list[int],
    heads: int,
    width: int,
    value_width: int,
    dtype: torch.dtype,
    options: str = "",
    parts: int = 2,
    shared_bytes: int = H100,
    multiprocessors: int = 1,
    size: float = 1.0,
) -> list[float]:
    """Errors of out, logsumexp, the gradients, and the gradients of these: norms of differences over norms. Queries and
    values have that size, keys a thousandth of it; the first 16 keys and values are zeros if `options` has z."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    rows, sequences, squares = sum(lengths) + 3, len(lengths), sum(n * n for n in lengths)
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    plan = ragged_plan(offsets, max_total=rows, max_batch=sequences, max_length=max(lengths))
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    x = {
        "q": random(rows, heads, width),
        "k": random(rows, heads, width),
        "v": random(rows, heads, value_width),
    }
    if "b" in options:
        x["bias"] = random(heads, squares + 5)
    if "g" in options:
        x["gate"] = random(rows, 3)
    if "s" in options:
        x["switch"] = random(rows).abs().clamp(max=1)
    for name, factor in {"q": size, "k": 1e-3 * size, "v": size}.items():
        x[name] *= factor if size != 1 else 1
    if "z" in options:
        x["k"][:16] = x["v"][:16] = 0
    along = {name: random(*value.shape) for name, value in x.items()}
    absent = 5 * torch.rand(sequences, generator=generator).to(sums) if "a" in options else None
    grad_out, scale, shift = random(rows, heads, value_width), width**-0.5, 3.0 if "s" in options else 0.0
    scale /= 1e-3 * size**2 if size != 1 else 1
    out, logsumexp = torch.full_like(grad_out, torch.nan), torch.full((rows, heads), torch.nan, dtype=sums)

    def new_grads() -> dict[str, torch.Tensor]:
        # The op clears the bias' gradient; kernels write only the parts that belong to sequences.
        return {
            n: torch.zeros_like(t) if n == "bias" else torch.full_like(t, torch.nan) for n, t in x.items()
        }

    call = Call()

    def point(names: dict[str, Any]) -> None:
        for name, value in names.items():
            setattr(call, name.replace("switch", "switches") if name == "switch" else name, value.data_ptr())

    first, second, grad_grad_out = new_grads(), new_grads(), torch.full_like(grad_out, torch.nan)
    point(
        {
            **x,
            "offsets": offsets,
            "plan": plan.items,
            "out": out,
            "logsumexp": logsumexp,
            "grad_out": grad_out,
        }
    )
    point({"grad_grad_out": grad_grad_out, **({} if absent is None else {"absent": absent})})
    point({f"along_{name}": value for name, value in along.items()})
    call.rows, call.heads, call.width, call.value_width, call.sequences = (
        rows,
        heads,
        width,
        value_width,
        sequences,
    )
    call.gates, call.items, call.max_length = 3 if "g" in options else 0, len(plan.items) - 1, max(lengths)
    call.bias_size, call.parts = squares + 5 if "b" in options else 0, parts
    call.shared_bytes, call.multiprocessors, call.scale, call.shift = (
        shared_bytes,
        multiprocessors,
        scale,
        shift,
    )
    for derivative, grads in enumerate(({}, first, second)):
        point({f"grad_{name}": value for name, value in grads.items()})
        library.run_attention(derivative, DTYPES.index(dtype), ctypes.byref(call))

    leaves = {name: value.double().requires_grad_() for name, value in x.items()}
    optional = [leaves.get(name) for name in ("bias", "gate", "switch")]
    of_grad = grad_out.double().requires_grad_()
    want, total = attention(leaves["q"], leaves["k"], leaves["v"], offsets, *optional, absent, scale, shift)
    of_first = torch.autograd.grad(want, list(leaves.values()), of_grad, create_graph=True)
    inner = sum((g * along[name].double()).sum() for name, g in zip(leaves, of_first, strict=True))
    of_second = torch.autograd.grad(inner, [of_grad, *leaves.values()])
    got = [out, logsumexp, *first.values(), grad_grad_out, *second.values()]
    return [
        float((a.double() - b.detach()).norm() / b.detach().norm())
        for a, b in zip(got, [want, total, *of_first, *of_second], strict=True)
    ]


def layer_errors(
    library: ctypes.CDLL, rows: int, last: int, features: int, width: int, normalize: bool
) -> list[float]:
    """Errors of a layer's kernels on rows: q, k, v, the result, grad_o, delta and grad_g, for rows before `last`."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        "project": (features, 3 * width),
        "project_bias": (3 * width,),
        "out": (width, features),
        **{name: (features,) for name in ("out_bias", "norm", "norm_bias")},
    }
    inputs = {"g": features, "grad": features, **dict.fromkeys(("o", "grad_q", "grad_k", "grad_v"), width)}
    results = {
        **dict.fromkeys(("q", "k", "v", "grad_o"), width),
        **dict.fromkeys(("result", "grad_g"), features),
        "delta": 1,
    }
    x = {n: torch.randn(*shape, generator=generator) for n, shape in weights.items()}
    x |= {n: torch.randn(rows, columns, generator=generator) for n, columns in inputs.items()}
    for name in inputs:
        x[name][last:] = torch.nan  # rows without an atom
    found = {n: torch.full((rows, columns), torch.nan) for n, columns in results.items()}
    call = LayerCall(rows=rows, features=features, width=width, normalize=normalize)
    counted = torch.tensor([last], dtype=torch.int32)
    for name, value in {**x, **found, "last": counted}.items():
        setattr(call, name, value.data_ptr())
    library.run_layer(ctypes.byref(call))

    own = {n: value[:last] if n in inputs else value for n, value in x.items()}
    y = {n: value.double().requires_grad_(n in ("g", "o")) for n, value in own.items()}
    parts = (y["g"] @ y["project"] + y["project_bias"]).chunk(3, dim=1)
    if normalize:
        parts = tuple(part / part.norm(dim=1, keepdim=True) for part in parts)
    h = y["g"] + y["o"] @ y["out"] + y["out_bias"]
    result = torch.nn.functional.layer_norm(h, (features,), y["norm"], y["norm_bias"], 1e-5)
    ends, grads = [result, *parts], [y["grad"], y["grad_q"], y["grad_k"], y["grad_v"]]
    grad_g, grad_o = torch.autograd.grad(ends, [y["g"], y["o"]], grads)
    want = {**dict(zip("qkv", parts, strict=True)), "result": result, "grad_g": grad_g, "grad_o": grad_o}
    want["delta"] = (grad_o * y["o"]).sum(1, keepdim=True)
    return [
        float((found[n][:last].double() - value.detach()).norm() / value.detach().norm())
        for n, value in want.items()
    ]


def moments_errors(
    library: ctypes.CDLL,
    lengths: list[int],
    widths: list[int],
    features: int,
    *,
    smooth: bool,
) -> list[float]:
    """Errors of the sums after layers, and of the gradients by rows, environment, directions and switch, for rows with
    an atom, against the op on the CPU in float64."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    def anywhere(x: torch.Tensor) -> torch.Tensor:
        """The same numbers, starting one number after an aligned address, as weights may."""
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)

    atoms, total, spare = len(lengths), sum(lengths), 37
    behind = [*widths[1:], features]
    weights = {
        name: [random(n, m) / n**0.5 for n, m in zip(widths, behind, strict=True)]
        for name in ("inner", "out")
    }
    weights["bias"] = [random(m) for m in behind]
    later = {"project": [random(n, 3 * n) / n**0.5 for n in widths[1:]]}
    later |= {
        "project_bias": [random(3 * n) for n in widths[1:]],
        "factors": [random(n).cos() for n in widths[1:]],
    }
    rows = {"rows": random(total, 4 * widths[0]), "environment": random(total, 4)}
    rows["gate"] = torch.nn.functional.normalize(random(total, 3), dim=1)
    if smooth:
        rows["switch"] = random(total).abs().clamp(max=1)
    norm, norm_bias, absent = random(features), random(features), 5 * random(atoms).abs()
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    plan = ragged_plan(offsets, max_total=total + spare, max_batch=atoms, max_length=max(lengths))
    grad, moments = random(atoms, 4, features), torch.full((atoms, 4, features), torch.nan)

    double = {name: x.double() for name, x in rows.items()}
    lists = [[x.double() for x in xs] for xs in (*weights.values(), *later.values())]
    of_pairs = (double["gate"], double.get("switch"), absent.double() if smooth else None)
    scalars = ([0.7] * len(widths), 20.0, 1e-5, True, plan.items, plan.max_length)
    args = (double["rows"], double["environment"], offsets, *lists, norm.double(), norm_bias.double())
    want, kept = torch.ops.mdops.attention_moments(*args, *of_pairs, *scalars)
    of_grad = torch.ops.mdops.attention_moments_backward(grad.double(), kept, *args, *of_pairs, *scalars)

    # There is room for more rows than atoms have; these rows are NaN.
    given = {n: torch.cat([x, torch.full((spare, *x.shape[1:]), torch.nan)]) for n, x in rows.items()}
    found = {f"grad_{name}": torch.full_like(x, torch.nan) for name, x in given.items()}
    saved = torch.full((total + spare, kept.shape[1]), torch.nan)
    call = MomentsCall(
        count=total + spare,
        atoms=atoms,
        layers=len(widths),
        features=features,
        normalize=True,
    )
    call.items, call.max_length, call.width_0, call.width_1 = (
        len(plan.items) - 1,
        max(lengths),
        widths[0],
        widths[-1],
    )
    tensors = {**given, **found, "norm": norm, "norm_bias": norm_bias, "offsets": offsets, "plan": plan.items}
    tensors |= {"moments": moments, "saved": saved, "grad": grad}
    tensors |= {f"{name}_{k}": x for name, xs in weights.items() for k, x in enumerate(xs)}
    tensors |= {name: xs[0] for name, xs in later.items() if xs}
    begin_anywhere = ("norm", "norm_bias", *(f"{n}_{k}" for n in weights for k in range(len(widths))), *later)
    tensors |= {name: anywhere(tensors[name]) for name in begin_anywhere if name in tensors}
    if smooth:
        tensors["absent"] = absent
    for name, value in tensors.items():
        setattr(call, name, value.data_ptr())
    library.run_moments(ctypes.byref(call))
    got = [moments, *(x[:total] for x in found.values())]
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(got, [want, *of_grad], strict=False)]


def cases() -> dict[str, tuple[list[Any], dict[str, Any]]]:
    f32, f64, f16, bf16 = DTYPES[0], DTYPES[1], DTYPES[2], DTYPES[3]
    return {
        "float64, all options": ([[5, 0, 1, 19], 2, 7, 5, f64, "bgsa"], {}),
        "float64, bare": ([[5, 17], 1, 33, 40, f64], {}),
        "float64, 64 wide": ([[70, 33], 1, 64, 64, f64], {}),
        "float64, 128 wide, gate": ([[50, 33, 0, 1], 1, 128, 128, f64, "gsa"], {}),
        "float64, 112 wide, all options": ([[139, 1, 20], 2, 112, 80, f64, "bgsa"], {}),
        "float32, 200 wide": ([[20, 3], 1, 200, 130, f32, "bgsa"], {}),
        "float32, 32 wide": ([[5, 0, 1, 19, 40], 2, 32, 32, f32], {}),
        "float32, all options": ([[5, 0, 1, 19, 40], 2, 20, 7, f32, "bgsa"], {}),
        "float32, 64 wide": ([[70, 33], 1, 64, 64, f32], {}),
        "float32, 64 wide, gate": ([[70, 33], 1, 64, 64, f32, "gsa"], {}),
        "float32, 64 wide, longer": ([[97, 96, 112, 113], 1, 64, 64, f32, "gsa"], {}),
        "float32, 32 wide, longer": ([[100, 33], 1, 32, 32, f32, "gs"], {}),
        "float32, 128 wide": ([[140, 33], 1, 128, 128, f32], {}),
        "float32, 128 wide, gate": ([[50, 33], 1, 128, 128, f32, "gsa"], {}),
        "float32, 100 wide, all options": ([[139, 1, 20], 2, 100, 71, f32, "bgsa"], {}),
        "float32, 100 wide, gate": ([[139, 1, 0, 64], 2, 100, 71, f32, "ga"], {}),
        "float32, 75 wide": ([[300, 16, 33], 1, 75, 99, f32], {}),
        "float32, 128 wide, small": ([[50, 33], 1, 128, 128, f32, "gsz"], {"size": 1e-15}),
        "float32, 128 wide, large": ([[50, 33], 1, 128, 128, f32, "gsz"], {"size": 1e15}),
        "float32, 128 wide, 163 KiB": ([[140, 33], 1, 128, 128, f32, "gs"], {"shared_bytes": 163 << 10}),
        "float32, little shared memory": ([[150, 90], 1, 64, 64, f32, "gsa"], {"shared_bytes": 60000}),
        "float32, few sequences": ([[100, 90], 2, 32, 32, f32, "b"], {"multiprocessors": 132}),
        "bfloat16": ([[50, 33], 2, 64, 64, bf16], {}),
        "bfloat16, 128 wide": ([[140, 33, 0, 1], 2, 128, 128, bf16], {}),
        "bfloat16, 100 wide": ([[257, 16], 1, 100, 75, bf16], {}),
        "bfloat16, 64 wide, gate": ([[50, 33], 1, 64, 64, bf16, "g"], {}),
        "bfloat16, long": ([[300], 1, 64, 64, bf16], {}),
        "bfloat16, all options": ([[50, 33], 1, 100, 99, bf16, "bgsa"], {}),
        "float16, gate": ([[50, 33], 2, 64, 64, f16, "gs"], {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", type=Path, help="the folder of cuda_fp16.h")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    args = parser.parse_args()
    wrong = []

    def judge(name: str, found: list[float], tolerance: float) -> None:
        good = all(e <= tolerance for e in found)
        wrong.extend([] if good else [name])
        print(f"{'ok   ' if good else 'WRONG'} {name:32s}", " ".join(f"{e:.0e}" for e in found), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        hopper = ("-DMDOPS_HOPPER", "-D__CUDA_ARCH_FEAT_SM90_ALL")
        library = compiled("attention", cuda_headers(args.cuda), Path(folder), *hopper)
        for name, (arguments, named) in cases().items():
            if args.only not in name:
                continue
            judge(name, errors(library, *arguments, **named), TOLERANCE[arguments[4]])
        for rows, *sizes in (290, 277, 100, 128, True), (40, 40, 64, 33, False), (130, 100, 128, 99, True):
            name = f"layer, {rows} rows, {sizes[1]} to {sizes[2]}"
            if args.only in name:
                judge(name, layer_errors(library, rows, *sizes), TOLERANCE[torch.float32])
        for lengths, widths, features, smooth in (
            ([40, 0, 33, 1], [32, 64], 100, False),
            ([17, 70], [32, 64], 100, True),
            ([20, 3], [64, 64], 120, True),
            ([16], [32, 32], 50, False),
            ([3, 1, 0, 2, 4, 1, 1, 9], [32, 64], 100, True),
            ([5, 90], [64], 128, True),
        ):
            name = f"moments, {lengths} rows, {widths} to {features}"
            if args.only in name:
                judge(name, moments_errors(library, lengths, widths, features, smooth=smooth), 2e-5)
    if wrong:
        raise SystemExit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
