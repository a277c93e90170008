"""Work in several processes, which end with the process that started them, however that ends."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import torch

Job = tuple[Any, ...]  # the arguments of one call


class DiedError(Exception):
    """The process of a job ended before the job was done."""


class Jobs:
    """Calls functions in several processes, or in this one if one is enough. Results do not depend on the number of
    processes, because each call has the same number of threads.

    Attributes:
        cpu_seconds: processor time of all calls so far.
    """

    def __init__(self, processes: int, threads: int) -> None:
        """`processes`: 0 means as many as this process may use processors."""
        self._processes, self._threads = processes or len(os.sched_getaffinity(0)), threads
        self._pool: ProcessPoolExecutor | None = None
        self.cpu_seconds = 0.0

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(
        self, function: Callable[..., Any], jobs: Sequence[Job], *, here: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Yields (a job's index, the function's result) when a job is done; `here`: one by one in this process.

        A job whose process died is tried once more, alone; if it dies again, its result is a DiedError. Exceptions of
        the function are raised."""
        if here or self._processes == 1 or len(jobs) < 2:
            for place, job in enumerate(jobs):
                with _threads(self._threads):
                    answer = self._counted(_timed(function, job))
                yield place, answer
            return
        left = set(range(len(jobs)))
        futures = {self._executor().submit(_timed, function, jobs[place]): place for place in sorted(left)}
        try:
            for future in as_completed(futures):
                answer = self._counted(future.result())
                left.discard(futures[future])
                yield futures[future], answer
        except BrokenProcessPool:
            self._close()
            yield from ((place, self._alone(function, jobs[place])) for place in sorted(left))
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def _alone(self, function: Callable[..., Any], job: Job) -> Any:
        with self._made(1) as pool:
            try:
                return self._counted(pool.submit(_timed, function, job).result())
            except BrokenProcessPool:
                return DiedError("its process ended")

    def _counted(self, timed: tuple[Any, float]) -> Any:
        self.cpu_seconds += timed[1]
        return timed[0]

    def _executor(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = self._made(self._processes)
        return self._pool

    def _made(self, processes: int) -> ProcessPoolExecutor:
        # Forked from a server that has only imported PyTorch: this starts quickly, and no threads are lost.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["mdops.learn.run"])
        return ProcessPoolExecutor(processes, context, _begin, (self._threads,))

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


def _timed(function: Callable[..., Any], job: Job) -> tuple[Any, float]:
    """The function's result, and the processor time of the call, s."""
    began = time.process_time()
    return function(*job), time.process_time() - began


def _begin(threads: int) -> None:
    """Prepares a new process."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
