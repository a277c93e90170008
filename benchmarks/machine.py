"""A description of the machine of a benchmark, for its JSON file."""

import argparse
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import mdops
import mdops.ops


def machine(device: str = "cpu", commit: str | None = None) -> dict[str, Any]:
    """Processor, GPU, versions, and the commit: the given one, the one in the file MDOPS_COMMIT_FILE, or that
    of the checkout that contains this file."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(": ")[1] for line in lines if "model name" in line), "")
    found = {
        "cpu": f"{cpu.strip()} ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "isa": torch.ops.mdops.cpu_isa(),
        "torch": torch.__version__,
        "mdops": mdops.__version__,
        "commit": commit or _commit(),
    }
    return found | ({"gpu": torch.cuda.get_device_name(device)} if device != "cpu" else {})


def _commit() -> str | None:
    told = os.environ.get("MDOPS_COMMIT_FILE")
    if told:
        return Path(told).read_text().strip()
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows the docstring without reformatting."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def report(result: Any, file: Path | None) -> None:
    """Prints the result, and writes it to a JSON file if one is given."""
    text = json.dumps(result, indent=1)
    print(text)
    if file:
        file.write_text(text + "\n")
