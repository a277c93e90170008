"""Changes bytes of TensorFlow graphs, many times, and reads the results in child processes.

    python scripts/mutate_graphs.py GRAPH... [--count 10000] [--seed 0]

Every file must be refused with a ModelFileError or an UnsupportedModelError, or be read as a model that can be
evaluated; no process may die, take more than 10 s for a file, or more than 2 GiB. Changes of numbers that occur in one
place only may go unnoticed: graphs have no checksums.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "io"))

SECONDS, GIBIBYTES = 10.0, 2.0
_BATCH = 250


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", type=Path, nargs="+", metavar="GRAPH")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found: dict[str, int] = {}
    wrong, slowest, largest = [], 0.0, 0.0
    context = multiprocessing.get_context("fork")
    for first in range(args.seed, args.seed + args.count, _BATCH):
        queue = context.Queue()
        seeds = range(first, min(first + _BATCH, args.seed + args.count))
        child = context.Process(target=batch, args=(args.graphs, seeds, queue))
        child.start()
        for seed in seeds:
            try:
                outcome, seconds, memory = queue.get(timeout=6 * SECONDS)
            except Exception:
                outcome, seconds, memory = f"no answer, exit code {child.exitcode}", SECONDS, 0.0
            found[outcome.partition(":")[0]] = found.get(outcome.partition(":")[0], 0) + 1
            slowest, largest = max(slowest, seconds), max(largest, memory)
            if outcome.startswith(("no answer", "other")) or seconds > SECONDS or memory > GIBIBYTES:
                wrong.append({"seed": seed, "outcome": outcome, "seconds": seconds, "GiB": memory})
                print(wrong[-1], flush=True)
            if outcome.startswith("no answer"):
                child.kill()
                break
        child.join()
    print(
        json.dumps(
            {"files": args.count, **found, "slowest, s": slowest, "GiB": largest, "wrong": wrong}, indent=1
        )
    )
    return 1 if wrong else 0


def batch(graphs: list[Path], seeds: range, queue: "multiprocessing.Queue") -> None:
    from graphs import mutated

    warnings.simplefilter("ignore")
    originals = [graph.read_bytes() for graph in graphs]
    read(graphs[0])  # for its imports
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            random = np.random.default_rng(seed)
            which = int(random.integers(len(graphs)))
            path = Path(folder) / f"graph{graphs[which].suffix}"
            path.write_bytes(mutated(originals[which], random))
            start = time.perf_counter()
            outcome = read(path)
            seconds = time.perf_counter() - start
            queue.put((outcome, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))


def read(path: Path) -> str:
    """ "refused", or "read" if the model can be evaluated, or "other" with the error."""
    import torch

    import mdops
    from mdops.errors import MDOpsError
    from mdops.system import from_tensors

    torch.set_num_threads(1)
    try:
        potential = mdops.load(path, dtype="float64", spline=False, overflow="extend")
    except MDOpsError:
        return "refused"
    except Exception as error:
        return f"other: {type(error).__name__}: {error}"
    try:
        positions = torch.tensor([[0.0, 0, 0], [1.1, 0, 0], [0, 1.2, 0.3]], dtype=torch.float64)
        system = from_tensors(
            positions, torch.zeros(3, dtype=torch.int32), None, None, None, len(potential.type_map)
        )
        extra = {name: torch.zeros(n) for name, n in potential.parameter_sizes.items() if n}
        potential.evaluate(system, **extra)
    except MDOpsError:
        return "refused"
    except Exception as error:
        return f"other: {type(error).__name__}: {error}"
    return "read"


if __name__ == "__main__":
    raise SystemExit(main())
