"""DeePMD-kit in a process of its own, which evaluates a model by its PyTorch backend when told to."""

import contextlib
import subprocess
from pathlib import Path
from typing import Any, Self

import numpy as np
from ase import Atoms

from mdops import Potential

# Says when it is loaded, waits for a line, warms up and says that it is ready. Then it reads lines: how (whole or
# step), and the number of a box. Answers with the milliseconds of that call.
CHILD = """
import os, sys, time, numpy as np, torch
from deepmd.entrypoints.convert_backend import convert_backend
from deepmd.infer import DeepPot
from deepmd.pt.utils.nlist import extend_input_and_build_neighbor_list

if not os.path.exists(sys.argv[1]):
    convert_backend(INPUT=sys.argv[1].replace(".pth", ".dp"), OUTPUT=sys.argv[1])
potential, clock = DeepPot(sys.argv[1]), getattr(time, sys.argv[2])
model = potential.deep_eval.dp.model["Default"]
device = next(model.parameters()).device
print("loaded", flush=True)
sys.stdin.readline()
calls = {}
for number, file in enumerate(sys.argv[3:]):
    case = np.load(file)
    arguments = case["positions"].reshape(1, -1), case["cell"].reshape(1, 9), case["types"]
    positions, cell, types = (torch.as_tensor(x, device=device) for x in arguments)
    atoms, kinds, mapping, rows = extend_input_and_build_neighbor_list(
        positions.reshape(1, -1, 3), types[None], model.get_rcut(), [int(n) for n in model.get_sel()],
        mixed_types=model.mixed_types(), box=cell,
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()  # of all pairs of atoms
    whole = lambda arguments=arguments: potential.eval(*arguments)
    step = lambda given=(atoms, kinds, rows, mapping): model.forward_lower(*given)
    calls["whole", number], calls["step", number] = whole, step

def timed(run):
    start = clock()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (clock() - start)

for (how, number), run in calls.items():  # TorchScript compiles, and again, in the first few
    for _ in range(6 if number == 0 else 3):
        timed(run)
print("ready", flush=True)
for line in sys.stdin:
    how, number = line.split()
    print(timed(calls[how, int(number)]), flush=True)
"""


class DeePMDKit:
    """A process that evaluates a model of which the folder keeps the file; a call is timed by the clock that `time` has
    by that name. `warm_up` comes before the first call. Raises RuntimeError with the reason if it has no answer."""

    def __init__(
        self, python: str, potential: Potential, boxes: list[Atoms], folder: Path, clock: str = "perf_counter"
    ) -> None:
        model = folder / "model.pth"
        if not model.exists():
            potential.save(folder / "model.dp")
        cases = []
        for box in boxes:
            cases.append(folder / f"case{len(box)}.npz")
            types = [potential.type_map.index(s) for s in box.symbols]
            np.savez(cases[-1], positions=box.positions, cell=box.cell.array, types=types)
        self._log = folder / "log"
        with self._log.open("w") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            command = [python, "-c", CHILD, model, clock, *cases]
            self._process = subprocess.Popen(command, text=True, **pipes)

    def wait(self) -> None:
        """Until it is loaded: several load at once."""
        assert self._line() == "loaded"

    def warm_up(self) -> None:
        self._tell("go")
        assert self._line() == "ready"

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # then it has no answer
            assert self._process.stdin is not None
            print(line, file=self._process.stdin, flush=True)

    def _line(self) -> str:
        for line in self._process.stdout or ():
            word = line.strip()
            if word in ("loaded", "ready") or word.replace(".", "").replace("e-", "").isdigit():
                return word
        raise RuntimeError(f"DeePMD-kit ended: {_last_line(self._log.read_text())}")

    def milliseconds(self, how: str, box: int = 0) -> float:
        """Of a "whole" call, which makes its list in PyTorch, or of a "step" with the list given, as LAMMPS does."""
        self._tell(f"{how} {box}")
        return float(self._line())

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


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was written"])[-1][:200]
