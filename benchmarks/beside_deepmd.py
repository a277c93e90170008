"""DeePMD-kit in its own process, which evaluates a model with its PyTorch backend on request."""

import contextlib
import subprocess
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from ase import Atoms

from mdops import Potential
from mdops.ops import unpack_images
from mdops.system import from_atoms

# Prints when it is loaded, waits for a line, warms up and prints that it is ready. Then each line is a kind of call
# (whole, step, or first: load the file and evaluate the first box, as at the start) and the number of a box; or a
# number of threads. It answers with the milliseconds of the call.
CHILD = """
import os, sys, time, numpy as np, torch
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.entrypoints.convert_backend import convert_backend
from deepmd.infer import DeepPot

potential, clock = None, getattr(time, sys.argv[2])
original = sys.argv[1].replace(".pth", ".dp")
tree = load_dp_model(original)["model"] if os.path.exists(original) else {}
kind = tree.get("type"), tree.get("descriptor", {}).get("type")
if "SeZM" in kind:  # there is no .pth of DPA-4: its module as it is, which makes its list
    from deepmd.pt.model.model.model import BaseModel
elif "dpa4c" in kind:  # nor of DPA-4C
    from deepmd.pt_expt.model.model import BaseModel
elif not os.path.exists(sys.argv[1]):
    convert_backend(INPUT=original, OUTPUT=sys.argv[1])
start = clock()
if os.path.exists(sys.argv[1]):
    potential = DeepPot(sys.argv[1])
    model = potential.deep_eval.dp.model["Default"]
else:
    model = BaseModel.deserialize(tree).eval()
loading = 1e3 * (clock() - start)
device = next(model.parameters()).device
print("loaded", flush=True)
sys.stdin.readline()
calls = {}
for number, file in enumerate(sys.argv[3:]):
    case = np.load(file)
    cell = case["cell"].reshape(1, 9) if case["cell"].any() else None
    arguments = case["positions"].reshape(1, -1), cell, case["types"]
    names = "with_images", "types_with_images", "rows", "mapping"
    given = tuple(torch.as_tensor(case[name], device=device)[None] for name in names)
    if potential is None:
        x, cell, types = (one if one is None else torch.as_tensor(one, device=device) for one in arguments)
        run = lambda x=x, cell=cell, types=types: model(x.view(1, -1, 3).requires_grad_(), types[None], box=cell)
        calls["whole", number] = run
        continue
    whole = lambda arguments=arguments: potential.eval(*arguments)
    step = lambda given=given: model.forward_lower(*given)
    calls["whole", number], calls["step", number] = whole, step

def timed(run):
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (clock() - start)

for (how, number), run in list(calls.items()):  # TorchScript compiles, and again, in the first few
    try:
        found = [timed(run) for _ in range(6 if number == 0 else 3)]
        if (how, number) == ("whole", 0):
            first = loading + found[0]
    except Exception as error:  # its list of a large box does not fit into the memory
        print(repr(error).splitlines()[0], file=sys.stderr, flush=True)
        del calls[how, number]
        if device.type == "cuda":
            torch.cuda.empty_cache()
print("ready", flush=True)
for line in sys.stdin:
    how, number = line.split()
    if how in ("first", "threads"):
        if how == "threads":
            torch.set_num_threads(int(number))
        print(first, flush=True)
        continue
    call = calls.get((how, int(number)))
    print("none" if call is None else timed(call), flush=True)
"""


class DeePMDKit:
    """A process that evaluates the model of a file in the folder. Calls are timed by the function of `time` with the
    given name. `warm_up` precedes the first call. Raises RuntimeError with the reason if there is no answer."""

    def __init__(
        self, python: str, potential: Potential, boxes: list[Atoms], folder: Path, clock: str = "perf_counter"
    ) -> None:
        model = folder / "model.pth"
        if not model.exists():
            potential.save(folder / "model.dp")
        cases = []
        for box in boxes:
            cases.append(folder / f"case{len(box)}.npz")
            np.savez(cases[-1], **_case(potential, box))
        self._log = folder / "log"
        with self._log.open("w") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            command = [python, "-c", CHILD, model, clock, *cases]
            self._process = subprocess.Popen(command, text=True, **pipes)

    def wait(self) -> None:
        """Waits until it is loaded; several processes can load at once."""
        assert self._line() == "loaded"

    def warm_up(self) -> None:
        self._tell("go")
        assert self._line() == "ready"

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the process has ended, and gives no answer
            assert self._process.stdin is not None
            print(line, file=self._process.stdin, flush=True)

    def _line(self) -> str:
        for line in self._process.stdout or ():
            word = line.strip()
            if word in ("loaded", "ready", "none") or word.replace(".", "").replace("e-", "").isdigit():
                return word
        raise RuntimeError(f"DeePMD-kit ended: {_last_line(self._log.read_text())}")

    def milliseconds(self, how: str, box: int = 0) -> float:
        """The time of a "whole" call, which makes its list in PyTorch; of a "step" with a given list, as in LAMMPS; or
        of the "first" whole call of the first box, with the loading of the file. NaN if it did not run."""
        self._tell(f"{how} {box}")
        answer = self._line()
        return float("nan") if answer == "none" else float(answer)

    def use_threads(self, count: int) -> None:
        """Sets the number of threads of later calls."""
        self._tell(f"threads {count}")
        self._line()

    def __enter__(self) -> Self:
        self.wait()
        self.warm_up()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


def _case(potential: Potential, box: Atoms) -> dict[str, np.ndarray]:
    """A box, and its list in DeePMD-kit's form: atoms followed by their images that are neighbours, for each the index
    of its atom, and rows of neighbours, with -1 for none."""
    system = from_atoms([box], potential.type_map)
    found = potential.neighbor_list(system)
    neighbors, images = (x.numpy().astype(np.int64) for x in found[:2])
    types, n = system.types.numpy(), len(box)
    there = np.arange(neighbors.shape[1]) < found.counts.numpy().sum(1)[:, None]
    moved = there & (images != 0)
    pairs, place = np.unique(np.stack([neighbors[moved], images[moved]], 1), axis=0, return_inverse=True)
    rows = np.where(there, neighbors, -1)
    rows[moved] = n + place.reshape(-1)
    shifts = unpack_images(torch.from_numpy(pairs[:, 1])).numpy()
    mapping = np.concatenate([np.arange(n), pairs[:, 0]])
    return {
        "positions": box.positions,
        "cell": box.cell.array,
        "types": types,
        "with_images": np.concatenate([box.positions, box.positions[pairs[:, 0]] + shifts @ box.cell.array]),
        "types_with_images": types[mapping].astype(np.int64),
        "mapping": mapping,
        "rows": rows,
    }


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was written"])[-1][:200]
