"""Models that LAMMPS' pair style asks through a process of Python beside each of its own, as the C core does not have
them. The pair style starts `python -m mdops.lammps_server SOCKET MEMORY` with two open files, which
source/lammps/python_models.h tells more about."""

import mmap
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from mdops.domain import Communication, Domain
from mdops.errors import MDOpsError, UnsupportedModelError
from mdops.evaluators.judge import Overflow
from mdops.loading import load
from mdops.ops import NeighborList

HEADER = struct.Struct("<8q")  # what it is, six numbers, and how many bytes follow
LOAD, NEIGHBORS, COMPUTE, EXCHANGED = 1, 2, 3, 4  # what LAMMPS sends
MODEL, DONE, FAILED, TO_GHOSTS, FROM_GHOSTS = 11, 12, 13, 14, 15  # and what comes back


class Memory:
    """The arrays that both processes see: those of a list of `atoms`, `ghosts` and `entries`."""

    def __init__(self, file: int, atoms: int, ghosts: int, entries: int, width: int) -> None:
        """`width`: places of 8 bytes for what an atom's exchange takes."""
        every = atoms + ghosts
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "positions": (np.float64, (every, 3)),
            "forces": (np.float64, (every, 3)),
            "energies": (np.float64, (atoms,)),
            "totals": (np.float64, (16,)),
            "nodes": (np.float64, (every, width)),
            "types": (np.int32, (every,)),
            "counts": (np.int32, (atoms,)),
            "entries": (np.int32, (entries,)),
        }
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for dtype, shape in shapes.values()]
        places = np.cumsum([0] + [(size + 63) // 64 * 64 for size in sizes])
        map_ = mmap.mmap(file, int(places[-1]))
        self._arrays = {
            name: np.frombuffer(map_, dtype, int(np.prod(shape)), int(place)).reshape(shape)
            for (name, (dtype, shape)), place in zip(shapes.items(), places[:-1], strict=True)
        }

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._arrays[name])


class Server:
    """Answers one pair style until it hangs up."""

    def __init__(self, channel: socket.socket, memory: int) -> None:
        self.channel, self.file = channel, memory
        self.domains: list[Domain] = []
        self.parameters: list[torch.Tensor | None] = []
        self.width = self.atoms = 0
        self.memory: Memory | None = None
        self.neighbors: NeighborList | None = None
        self.types = torch.zeros(0, dtype=torch.int32)

    def serve(self) -> None:
        answers: dict[int, Callable[[tuple[int, ...], str], None]] = {
            LOAD: self.load,
            NEIGHBORS: self.take_neighbors,
            COMPUTE: self.compute,
        }
        while (message := self.receive()) is not None:
            kind, numbers, text = message
            try:
                answers[kind](numbers, text)
            except MDOpsError as error:
                self.send(FAILED, text=str(error))
            except ConnectionError:
                return  # LAMMPS has ended
            except Exception as error:
                traceback.print_exc()
                self.send(FAILED, text=f"mdops failed: {type(error).__name__}: {error}; please report it")

    # -- What LAMMPS asks for

    def load(self, numbers: tuple[int, ...], text: str) -> None:
        """Numbers: threads, and how many of the parameters that follow are of the frame."""
        threads, frame = numbers[:2]
        precision, overflow, device, parameters, *paths = text.split("\n")
        torch.set_num_threads(threads)
        if device != "cpu" and not torch.cuda.is_available():
            raise UnsupportedModelError(f"device is {device}, and PyTorch sees no GPU")
        self.domains = [
            Domain(load(path, dtype=precision, device=device, overflow=cast(Overflow, overflow)))
            for path in paths
        ]
        found = torch.tensor([float(x) for x in parameters.split()], dtype=torch.float64, device=device)
        self.parameters = [one if len(one) else None for one in (found[:frame], found[frame:])]
        itemsize = self.domains[0].potential.dtype.itemsize
        self.width = max(-(-domain.exchange_width * itemsize // 8) for domain in self.domains)
        p = self.domains[0].potential
        sizes = p.parameter_sizes
        about = [p.cutoff, sizes["fparam"], sizes["aparam"], int("fparam" in p.model.default_parameters)]
        self.send(
            MODEL, self.width, len(p.type_map), itemsize, text="\n".join([*map(repr, about), *p.type_map])
        )

    def take_neighbors(self, numbers: tuple[int, ...], text: str) -> None:
        """Numbers: atoms, ghosts, and how many entries the rows of their list have."""
        atoms, ghosts, entries = numbers[:3]
        self.memory = Memory(self.file, atoms, ghosts, entries, self.width)
        domain = self.domains[0]
        types, counts, listed = (
            self.memory[name].to(domain.potential.device, copy=True)
            for name in ("types", "counts", "entries")
        )
        self.atoms, self.types = atoms, types
        self.neighbors = domain.neighbors(types, counts, listed, domain.potential.cutoff)
        self.send(DONE)

    def compute(self, numbers: tuple[int, ...], text: str) -> None:
        """Numbers: which model."""
        assert self.memory is not None and self.neighbors is not None
        domain, memory = self.domains[numbers[0]], self.memory
        positions = memory["positions"].to(domain.potential.device, copy=True)
        communication = Communication(
            lambda rows: self.exchange(TO_GHOSTS, rows), lambda rows: self.exchange(FROM_GHOSTS, rows)
        )
        found = domain(positions, self.types, self.neighbors, self.atoms, communication, *self.parameters)
        memory["forces"].copy_(found.forces)
        memory["energies"].copy_(found.energy)
        totals = memory["totals"]
        totals[0], totals[10] = found.energy.sum(), found.nearest
        totals[1:10] = found.virial.flatten()
        self.send(DONE)

    def exchange(self, direction: int, rows: torch.Tensor) -> None:
        """LAMMPS' communication, of rows (N + M, W)."""
        assert self.memory is not None
        shared = self.memory["nodes"].flatten().view(rows.dtype)
        padded = -(-rows.shape[1] * rows.itemsize // 8)
        places = padded * 8 // rows.itemsize
        there = shared[: len(rows) * places].view(len(rows), places)
        there[:, rows.shape[1] :] = 0
        there[:, : rows.shape[1]] = rows
        self.send(direction, padded)
        message = self.receive()
        if message is None or message[0] != EXCHANGED:
            raise ConnectionError  # another process failed, and LAMMPS ends
        rows.copy_(there[:, : rows.shape[1]])

    # -- Messages

    def send(self, kind: int, *numbers: int, text: str = "") -> None:
        body = text.encode()
        padded = (*numbers, *(0,) * (6 - len(numbers)))
        self.channel.sendall(HEADER.pack(kind, *padded, len(body)) + body)

    def receive(self) -> tuple[int, tuple[int, ...], str] | None:
        """The next message; None where LAMMPS has ended."""
        head = self._read(HEADER.size)
        if head is None:
            return None
        kind, *numbers, size = HEADER.unpack(head)
        body = self._read(size)
        return None if body is None else (kind, tuple(numbers), body.decode())

    def _read(self, size: int) -> bytes | None:
        found = bytearray()
        while len(found) < size:
            part = self.channel.recv(size - len(found))
            if not part:
                return None
            found += part
        return bytes(found)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is LAMMPS'; this process ends with it
    channel, memory = (int(word) for word in sys.argv[1:3])
    with socket.socket(fileno=channel) as there:
        Server(there, memory).serve()


if __name__ == "__main__":
    main()
