"""The kernels of a function that runs on a GPU, from PyTorch's profiler."""

from collections.abc import Callable
from typing import Any

import torch

_LONGEST_NAME = 200


def kernels_of(run: Callable[[], Any], times: int) -> list[dict[str, Any]]:
    """Kernels of a call of `run`, means over `times` calls: name, count and microseconds of all kernels with that name;
    the longest first."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(times):
            run()
        torch.cuda.synchronize()
    rows = [
        {"name": row.key[:_LONGEST_NAME], "count": row.count / times, "us": row.device_time_total / times}
        for row in profile.key_averages()
        if row.device_time_total > 0
    ]
    return sorted(rows, key=lambda row: -row["us"])
