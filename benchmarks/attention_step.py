"""A training step of DPA-1 with two layers of attention on a GPU: its wall time, and its kernels.

    python benchmarks/attention_step.py --train DIR [DIR ...] --validate DIR [--json FILE]

The model and the settings are those of benchmarks/attention_training.py.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from attention_training import configured, seconds_a_step
from kernels import kernels_of
from machine import machine

from mdops.train.loop.trainer import Trainer

_STEPS = 4  # number of profiled steps


def kernels(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The kernels of a step, from `kernels_of`."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(configured(arguments, 10**6), folder, device=arguments.device)
        for _ in range(5):
            trainer._advance()

        def step() -> None:
            trainer.branches[""].step(trainer.frames.share(0, trainer.processes), 1e-9, 1.0)

        return kernels_of(step, _STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--train", nargs="+", required=True)
    parser.add_argument("--validate", nargs="+", required=True)
    parser.add_argument("--batch", type=int, default=1, help="frames in a batch")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning_rate.start_lr")
    parser.add_argument("--timed", type=int, default=60, help="steps by the clock")
    parser.add_argument("--commit", help="where the sources are no checkout")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    arguments.device = "cuda"
    times = [1e3 * seconds_a_step(arguments) for _ in range(2)]
    rows = kernels(arguments)
    answer = {
        "machine": machine("cuda", arguments.commit),
        "ms_a_step": times,
        "kernels": sum(row["count"] for row in rows),
        "ms_of_kernels": sum(row["us"] for row in rows) / 1e3,
        "longest": rows[:60],
    }
    print(f"{times} ms a step; {answer['kernels']} kernels, {answer['ms_of_kernels']:.2f} ms")
    for row in rows[:60]:
        print(f"{row['us']:8.1f} us {row['count']:6.1f} {row['name'][:100]}")
    if arguments.json:
        arguments.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
