"""Tests that fill a GPU's memory have it alone."""

import threading

from gpu_lock import gpu_lock


def entered(folder, *, alone):
    """A thread that takes the lock and keeps it, with the events that it is in, and that it may go."""
    inside, leave = threading.Event(), threading.Event()

    def hold():
        with gpu_lock(alone=alone, folder=folder):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    return inside, leave, thread


def test_others_share_and_one_that_is_alone_goes_before_those_behind_it(tmp_path):
    first, second = (entered(tmp_path, alone=False) for _ in range(2))
    assert first[0].wait(60) and second[0].wait(60)
    alone = entered(tmp_path, alone=True)
    assert not alone[0].wait(0.1)
    behind = entered(tmp_path, alone=False)
    assert not behind[0].wait(0.1)
    first[1].set(), second[1].set()
    assert alone[0].wait(60) and not behind[0].is_set()
    alone[1].set()
    assert behind[0].wait(60)
    behind[1].set()
    for *_, thread in (first, second, alone, behind):
        thread.join(60)
