"""How many threads the C core takes where nobody says: processors that the process may run on, and quotas of groups."""

import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "source"
# A kernel for 8,192 processors, of which the process may use 1,500.
PROGRAM = """
#include <sched.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include "core/processors.h"

extern "C" int sched_getaffinity(pid_t, size_t bytes, cpu_set_t* set) noexcept {
  if (bytes < 1024) return errno = EINVAL, -1;
  std::memset(set, 0, bytes);
  for (size_t k = 0; k < 1500; ++k) CPU_SET_S(k, bytes, set);
  return 0;
}

int main(int, char** argv) { std::printf("%d", mdops::core::processors(argv[1], argv[2])); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processors")
    (folder / "main.cpp").write_text(PROGRAM)
    build = ["g++", "-std=c++20", f"-I{SOURCE}", folder / "main.cpp", SOURCE / "core/processors.cpp"]
    subprocess.run([*map(str, build), "-o", str(folder / "main")], check=True)
    return folder / "main"


CASES = {
    "no groups": (None, {}, 1500),
    "no quota": ("0::/job/7", {"job/cpu.max": "max 100000"}, 1500),
    "a quota": ("0::/job/7", {"job/7/cpu.max": "400000 100000"}, 4),
    "of a group above": ("0::/job/7", {"job/7/cpu.max": "max 100000", "job/cpu.max": "250000 100000"}, 2),
    "less than a processor": ("0::/", {"cpu.max": "50000 100000"}, 1),
    "version 1": (
        "4:memory:/x\n3:cpu,cpuacct:/job",
        {"cpu,cpuacct/job/cpu.cfs_quota_us": "300000", "cpu,cpuacct/job/cpu.cfs_period_us": "100000"},
        3,
    ),
    "version 1 without quota": (
        "3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 1500,
    ),
    "the root of a container": (
        "3:cpu,cpuacct:/docker/0f3",
        {"cpu,cpuacct/cpu.cfs_quota_us": "200000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
        2,
    ),
    "broken": ("nonsense\n0:\n0::\n0::relative", {"cpu.max": "x y"}, 1500),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_processors(program, tmp_path, case):
    groups, files, wanted = CASES[case]
    if groups is not None:
        (tmp_path / "cgroup").write_text(groups + "\n")
    for name, text in files.items():
        (tmp_path / "mounts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mounts" / name).write_text(text + "\n")
    done = subprocess.run(
        [program, tmp_path / "cgroup", tmp_path / "mounts"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == wanted
