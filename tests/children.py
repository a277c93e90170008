"""Python processes for tests, forked from one that has imported PyTorch and nothing of mdops: a child need not load it.

A child is otherwise what `python` makes of the same arguments: it has its own environment, imports mdops itself, and
its exit status and what it wrote are those of a process.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SERVER = r"""
import atexit, json, os, runpy, sys, traceback
import torch._dynamo  # PyTorch's optimizers import it, which takes a second

def run(arguments):
    # sys.argv and sys.path as `python` sets them for -c, -m and a file.
    kind, *rest = arguments
    if kind == "-c":
        code, sys.argv = rest[0], ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(kind))
        runpy.run_path(kind, run_name="__main__")

def child(job):
    for descriptor, file in ((0, os.devnull), (1, job["out"]), (2, job["err"])):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), descriptor)
    sys.stdin = open(0)
    os.environ.clear()
    os.environ.update(job["env"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(job["cwd"])
    status = 0
    try:
        run(job["arguments"])
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else stop.code is not None
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    try:
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status))

for line in sys.stdin:
    process = os.fork()
    if process == 0:
        child(json.loads(line))
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""

_server: subprocess.Popen | None = None


def server() -> subprocess.Popen:
    global _server
    if _server is None:
        command = [sys.executable, "-c", SERVER]
        _server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(stop)
    return _server


def stop() -> None:
    """It ends with its input."""
    _server.stdin.close()
    _server.wait()


def python(*arguments, env=None, cwd=None, check=False) -> subprocess.CompletedProcess[str]:
    """As subprocess.run([sys.executable, *arguments], ...) with what was written as text. `pytest-timeout` stops one
    that hangs."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        job = {
            "arguments": [str(a) for a in arguments],
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "out": str(out),
            "err": str(err),
        }
        pipes = server()
        pipes.stdin.write(json.dumps(job) + "\n")
        pipes.stdin.flush()
        pipes.stdout.readline()
        status = int(pipes.stdout.readline())
        done = subprocess.CompletedProcess(job["arguments"], status, out.read_text(), err.read_text())
    if check:
        assert done.returncode == 0, done.stderr
    return done


def in_threads(work, count, seconds=60):
    """work(0), work(1) and so on at once, each in a thread."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads)
