"""Child processes for the tests, forked from a server that has imported PyTorch: each starts in no time.

A fork of the test process itself would inherit threads of whatever ran before.
"""

import multiprocessing

import torch
import torch.distributed as dist

CONTEXT = multiprocessing.get_context("forkserver")
# PyTorch's optimizers import its compiler when the first one is made.
CONTEXT.set_forkserver_preload(["mdops.train.loop.trainer", "torch._dynamo", "pytest"])


def start(target, *args):
    """A process that has begun to run target(*args) on one thread."""
    process = CONTEXT.Process(target=_alone, args=(target, args))
    process.start()
    return process


def together(folder, target, *args, count=2):
    """Runs target(*args) in `count` processes that have joined each other by gloo; returns their exit codes.

    The store of their addresses is a file in the folder.
    """
    store = folder / "store"
    store.unlink(missing_ok=True)
    running = [start(_joined, f"file://{store}", rank, count, target, args) for rank in range(count)]
    for process in running:
        process.join(60)
    codes = [process.exitcode for process in running]
    for process in running:
        process.kill()
    return codes


def _alone(target, args):
    torch.set_num_threads(1)
    target(*args)


def _joined(store, rank, count, target, args):
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
    target(*args)
    dist.destroy_process_group()
