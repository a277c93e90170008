"""A call of an exported program beside `Potential.evaluate`, both with a given neighbour list, in turn.

    python benchmarks/export.py --inputs examples/water --system deepmd_folder [--models dpa2 dpa3 dpa4] [--atoms 192]
        [--device cuda] [--compiled] [--skin A] [--json FILE] [--commit HASH]

`--inputs` and `--system` are as in message_passing_gpu.py: sizes of DeePMD-kit's example inputs, random weights, water.
--compiled uses AOTInductor's package instead of the program that PyTorch interprets. "nets" is `evaluate` without
splines. With a skin of 0, a program has nearly as many edges as `evaluate`. Times are medians of nine calls, in
milliseconds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cuda_inference import SKIN, listed, repeated, structure
from deepmd_examples import model_of
from machine import machine

import mdops

REPEATS = 9


def milliseconds(call: Callable[[], Any], device: str) -> float:
    begin = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def times(name: str, args: argparse.Namespace) -> dict[str, Any]:
    potential = model_of(name, args.inputs).to(args.device)
    box = repeated(structure(potential.type_map, folder=args.system), args.atoms)
    system, pairs = listed(potential, [box], args.skin)
    given = {key: getattr(system, key) for key in ("positions", "types", "cell", "batch")}
    given |= {"neighbors": pairs.neighbors, "images": pairs.images, "counts": pairs.counts}
    begin = time.perf_counter()
    program: Any = potential.export(angle_capacity=args.angle_capacity if name == "dpa3" else None)
    exported = time.perf_counter() - begin
    if args.compiled:
        with tempfile.TemporaryDirectory() as folder:
            to = str(Path(folder, "model.pt2"))
            program = torch._inductor.aoti_load_package(
                torch._inductor.aoti_compile_and_package(program, package_path=to)
            )
    else:
        program = program.module()
    exact = mdops.Potential(potential.model)
    calls = {
        "evaluate": lambda: potential.evaluate(system, pairs),
        "program": lambda: program(**given),
        "nets": lambda: exact.evaluate(system, pairs),
    }
    answers = [call()["forces"].double() for call in calls.values()]
    rounds = [[milliseconds(call, args.device) for call in calls.values()] for _ in range(REPEATS)]
    medians = map(statistics.median, zip(*rounds, strict=True))
    return {
        "model": name,
        "atoms": system.atoms,
        "slots": pairs.neighbors.shape[1],
        "export_s": exported,
        "difference": float((answers[0] - answers[1]).abs().max() / answers[0].abs().max()),
        **dict(zip(calls, medians, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--inputs", type=Path, required=True)
    parser.add_argument("--system", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["dpa2", "dpa3", "dpa4"])
    parser.add_argument("--atoms", type=int, default=192)
    parser.add_argument("--angle-capacity", type=int, default=40, help="more neighbours within 4 A make NaN")
    parser.add_argument("--skin", type=float, default=SKIN, help="of the list, A")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit")
    args = parser.parse_args()
    found = {"machine": machine(args.device, args.commit), "compiled": args.compiled, "rows": []}
    for name in args.models:
        found["rows"].append(times(name, args))
        print(found["rows"][-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
