"""Runs a net as one block with mma.sync on the CPU, thread by thread, and compares it with PyTorch's operations.

    python scripts/emulate_nets.py [--cuda DIR] [--only TEXT]

Like scripts/emulate_attention.py for attention's kernels; see there.
"""

import argparse
import ctypes
import itertools
import sys
import tempfile
from pathlib import Path

import torch
from gpu_emulator.compile import compiled, cuda_headers

from mdops.ops import mlp_value_and_gradient
from mdops.ops.activation import CODES

BLOCKS = [(32, 256), (64, 256), (32, 512), (64, 512)]  # rows, and the widest layer: kBlockKinds
H100, A100, LITTLE = 227 << 10, 163 << 10, 99 << 10  # bytes of shared memory: rings of 4, 3 and 2 slots
TOLERANCE = {2: 5e-6, 1: 1e-2}  # relative to the largest number, by parts


class NetCall(ctypes.Structure):
    """NetCall of scripts/gpu_emulator/nets.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p * 17) for name in ("weight", "bias", "timestep")),
        *((name, ctypes.c_void_p) for name in ("inputs", "output")),
        *((name, ctypes.c_int64 * 16) for name in ("neurons", "residual")),
        *(
            (n, ctypes.c_int64)
            for n in ("rows", "columns", "layers", "activation", "kind", "parts", "shared_bytes")
        ),
        ("threshold", ctypes.c_double),
        ("scale", ctypes.c_double),
    ]


def errors(
    library: ctypes.CDLL, inputs: int, widths: list[int], activation: str, kind: int, parts: int, shared: int
) -> list[float]:
    """Errors of the values and of the gradient, relative to their largest number; two blocks."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / shape[0] ** 0.5

    sizes = [inputs, *widths, 1]
    weights = [random(a, b) for a, b in itertools.pairwise(sizes)]
    rows = 2 * BLOCKS[kind][0]
    biases, timesteps = [random(n) for n in sizes[1:]], [random(n) + 0.5 for n in sizes[1:]]
    residual = [n > 0 and widths[n] in (widths[n - 1], 2 * widths[n - 1]) for n in range(len(widths))]
    x = random(rows, inputs) * rows**0.5 * torch.logspace(-3, 0.5, rows)[:, None]
    x[1] = 0
    name, _, number = activation.partition(":")
    call = NetCall(
        rows=rows, columns=inputs, layers=len(widths), activation=CODES[name], kind=kind, parts=parts
    )
    call.shared_bytes, call.threshold, call.scale = shared, float(number or 0), 0.7
    for n in range(len(sizes) - 1):
        call.weight[n], call.bias[n] = weights[n].data_ptr(), biases[n].data_ptr()
        call.timestep[n] = timesteps[n].data_ptr()
    for n, width in enumerate(widths):
        call.neurons[n], call.residual[n] = width, residual[n]
    gradient, output = x.clone(), torch.full((rows,), torch.nan, dtype=torch.float64)
    call.inputs, call.output = gradient.data_ptr(), output.data_ptr()
    library.run_net(ctypes.byref(call))
    double = [[t.double() for t in of] for of in (weights, biases, timesteps)]
    value, slope = mlp_value_and_gradient(
        x.double(), *double[:2], activation=activation, timesteps=double[2][:-1], residual=residual
    )
    wanted = value[:, 0] - double[1][-1]
    found = []
    for a, b in ((output, wanted), (gradient.double(), 0.7 * slope)):
        scale = b.abs() if b.dim() == 1 else b.abs().amax(1, keepdim=True)
        scale = torch.maximum(scale, 0.1 * b.abs().max())
        found.append(float(((a - b).abs() / scale).max()) if torch.isfinite(a).all() else float("inf"))
    return found


CASES = [
    *((200, [48, 48], "tanh", kind, parts, H100) for kind in (0, 1) for parts in (2, 1)),
    (100, [24, 48, 96], "gelu", 0, 2, LITTLE),
    (100, [5, 10], "silu", 1, 2, LITTLE),
    (300, [240, 240], "tanh", 1, 2, LITTLE),
    (130, [240, 240, 8], "softplus", 0, 1, H100),
    (130, [240, 120, 240], "tanh", 0, 2, A100),
    (40, [128, 256, 250], "silut:-1.0", 0, 2, H100),
    *((60, [150, 300], "tanh", kind, parts, H100) for kind in (2, 3) for parts in (2, 1)),
    (60, [512, 30], "tanh", 2, 2, LITTLE),
    *(
        (40, [20] * 4, name, 0, 2, H100)
        for name in ("linear", "gelu", "relu", "relu6", "softplus", "sigmoid", "silu")
    ),
    (40, [20] * 4, "silut:3.0", 1, 2, H100),
    (20, [8], "tanh", 0, 2, H100),
    (20, [16] * 16, "tanh", 0, 2, H100),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cuda", type=Path, help="the folder of CUDA's headers")
    parser.add_argument("--only", default="", help="cases with this text")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        library = compiled("nets", cuda_headers(arguments.cuda), Path(folder))
        for case in CASES:
            name = " ".join(map(str, case))
            if arguments.only not in name:
                continue
            found = errors(library, *case)
            wrong = max(found) > TOLERANCE[case[4]]
            failed += wrong
            print(f"{name:60} {found[0]:.1e} {found[1]:.1e}{' WRONG' if wrong else ''}", flush=True)
    sys.exit(f"{failed} cases are wrong" if failed else 0)


if __name__ == "__main__":
    main()
