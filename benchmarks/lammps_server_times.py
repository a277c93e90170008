#!/usr/bin/env python3
"""`benchmarks/lammps.py --times` starts this instead of Python: `mdops.model_server`, with a record of where
each evaluation's time goes. Each process writes a file into the folder MDOPS_TIMES.

Each row is an evaluation, in seconds: the total; waiting for the GPU before rows can be sent; copying rows to and from
the memory shared with LAMMPS; and waiting for LAMMPS, which needs rows of every process. The rest is the time in
which the process launches work, while the GPU computes or waits.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from mdops import model_server

PARTS = ("all", "GPU", "copies", "other processes")
ROWS: list[list[float]] = []


def synchronized() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Timed(model_server.Server):
    def compute(self, *message: Any) -> None:
        self.row = [0.0] * len(PARTS)
        begin = synchronized()
        super().compute(*message)
        self.row[0] = synchronized() - begin
        ROWS.append(self.row)

    def exchange(self, direction: int, rows: torch.Tensor, count: int) -> torch.Tensor:
        begin = time.perf_counter()
        ready, before = synchronized(), self.row[3]
        came = super().exchange(direction, rows, count)
        self.row[1] += ready - begin
        self.row[2] += synchronized() - ready - (self.row[3] - before)
        return came

    def receive(self) -> Any:
        begin = time.perf_counter()
        message = super().receive()
        if message is not None and message[0] == model_server.EXCHANGED:
            self.row[3] += time.perf_counter() - begin
        return message


def main() -> None:
    sys.argv = sys.argv[2:]  # without "-m mdops.model_server"
    model_server.Server = Timed  # type: ignore[misc]
    model_server.main()
    text = json.dumps({"parts": PARTS, "rows": ROWS})
    Path(os.environ["MDOPS_TIMES"], f"{os.getpid()}.json").write_text(text)


if __name__ == "__main__":
    main()
