"""Models that LAMMPS' pair style asks through a process of Python beside each of its own, as the C core does not have
them. The pair style starts `python -m mdops.lammps_server SOCKET MEMORY` with two open files, which
source/lammps/python_models.h tells more about."""

import mmap
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from mdops.domain import Communication, Domain
from mdops.errors import MDOpsError, UnsupportedModelError
from mdops.loading import load
from mdops.models.judge import Overflow
from mdops.ops import EdgeIndex, NeighborList, edge_scatter

HEADER = struct.Struct("<8q")  # what it is, six numbers, and how many bytes follow
LOAD, NEIGHBORS, COMPUTE, EXCHANGED = 1, 2, 3, 4  # what LAMMPS sends
MODEL, DONE, FAILED, TO_GHOSTS, FROM_GHOSTS = 11, 12, 13, 14, 15  # and what comes back


class Memory:
    """The arrays that both processes see, in a file of memory. For a GPU it is pinned."""

    def __init__(self, file: int, device: torch.device) -> None:
        self.file, self.device = file, device
        self._bytes = np.zeros(0, np.uint8)
        self._arrays: dict[str, np.ndarray] = {}

    def lay_out(self, atoms: int, ghosts: int, entries: int, border: int, halo: int, width: int) -> None:
        """For a list of so many; `width`: places of 8 bytes for what a row of an exchange takes."""
        size = os.fstat(self.file).st_size
        if size != len(self._bytes):
            self._map(size)
        every = atoms + ghosts
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "positions": (np.float64, (every, 3)),
            "forces": (np.float64, (every, 3)),
            "energies": (np.float64, (atoms,)),
            "totals": (np.float64, (16,)),
            "border_rows": (np.float64, (border * width,)),
            "halo_rows": (np.float64, (halo * width,)),
            "types": (np.int32, (every,)),
            "counts": (np.int32, (atoms,)),
            "entries": (np.int32, (entries,)),
            "sources": (np.int32, (ghosts,)),
            "border": (np.int32, (border,)),
        }
        begin = 0
        for name, (dtype, shape) in shapes.items():
            count = int(np.prod(shape))
            self._arrays[name] = np.frombuffer(self._bytes, dtype, count, begin).reshape(shape)
            begin += (count * np.dtype(dtype).itemsize + 63) // 64 * 64

    def _map(self, size: int) -> None:
        """Maps the file anew, which has grown."""
        before, self._bytes = self._bytes, np.frombuffer(mmap.mmap(self.file, size), np.uint8)
        if self.device.type == "cuda":  # memory that cannot be pinned is slower, and works as well
            with torch.cuda.device(self.device):
                runtime = torch.cuda.cudart()
                if len(before):
                    runtime.cudaHostUnregister(before.ctypes.data)
                runtime.cudaHostRegister(self._bytes.ctypes.data, size, 0)

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._arrays[name])

    def rows(self, name: str, dtype: torch.dtype, width: int) -> torch.Tensor:
        """The rows of an exchange; each begins at a whole number of 8 bytes."""
        places = places_of(width, dtype.itemsize) * 8 // dtype.itemsize
        every = self[name].view(dtype)
        return every[: len(every) // places * places].view(-1, places)[:, :width]


def places_of(width: int, itemsize: int) -> int:
    """How many places of 8 bytes a row takes."""
    return -(-width * itemsize // 8)


class Halo(NamedTuple):
    """How rows go between atoms and ghosts.

    Attributes:
        atoms: N; border: those of them that other processes have as ghosts.
        images: of the N + M rows, the atom that each is an image of, or N + the row that comes from another process.
        is_alone: there is no other process.
    """

    atoms: int
    border: EdgeIndex
    images: EdgeIndex
    is_alone: bool


class Server:
    """Answers one pair style until it hangs up."""

    def __init__(self, channel: socket.socket, memory: int) -> None:
        self.channel, self.file = channel, memory
        self.domains: list[Domain] = []
        self.parameters: list[torch.Tensor | None] = []
        self.width = 0
        self.memory = Memory(memory, torch.device("cpu"))
        self.neighbors: NeighborList | None = None
        self.halo: Halo | None = None
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
        precision, overflow, device, parameters, condition, *paths = text.split("\n")
        charge_spin = [float(x) for x in condition.split()] or None
        torch.set_num_threads(threads)
        if device != "cpu" and not torch.cuda.is_available():
            raise UnsupportedModelError(f"device is {device}, and PyTorch sees no GPU")
        potentials = [
            load(path, dtype=precision, device=device, overflow=cast(Overflow, overflow)) for path in paths
        ]
        if any(potential.modifier is not None for potential in potentials):
            raise UnsupportedModelError(
                "the model has charges beyond the cutoff (a modifier dipole_charge), for which LAMMPS takes a file "
                "that `mdops convert IN OUT.safetensors` writes, with fix mdops/dplr"
            )
        self.domains = [Domain(potential, charge_spin) for potential in potentials]
        found = torch.tensor([float(x) for x in parameters.split()], dtype=torch.float64, device=device)
        self.parameters = [one if len(one) else None for one in (found[:frame], found[frame:])]
        p = self.domains[0].potential
        self.memory = Memory(self.file, p.device)
        self.width = max(places_of(domain.exchange_width, p.dtype.itemsize) for domain in self.domains)
        sizes = p.parameter_sizes
        about = [p.cutoff, sizes["fparam"], sizes["aparam"], int("fparam" in p.model.default_parameters)]
        self.send(MODEL, self.width, len(p.type_map), text="\n".join([*map(repr, about), *p.type_map]))

    def take_neighbors(self, numbers: tuple[int, ...], text: str) -> None:
        """Numbers: atoms, ghosts, how many entries the rows of their list have, how many atoms others have as ghosts,
        how many atoms of others there are among the ghosts, and processes."""
        atoms, ghosts, entries, border, halo, processes = numbers
        self.memory.lay_out(atoms, ghosts, entries, border, halo, self.width)
        domain = self.domains[0]
        types, counts, listed, sources, places = (
            self.memory[name].to(domain.potential.device, copy=True)
            for name in ("types", "counts", "entries", "sources", "border")
        )
        self.types = types
        self.neighbors = domain.neighbors(types, counts, listed, domain.potential.cutoff)
        itself = torch.arange(atoms, dtype=torch.int32, device=types.device)
        images = EdgeIndex.of(torch.cat((itself, sources)), atoms + halo)
        self.halo = Halo(atoms, EdgeIndex.of(places, atoms), images, processes == 1)
        self.send(DONE)

    def compute(self, numbers: tuple[int, ...], text: str) -> None:
        """Numbers: which model."""
        assert self.neighbors is not None and self.halo is not None
        domain, memory = self.domains[numbers[0]], self.memory
        positions = memory["positions"].to(domain.potential.device, copy=True)
        communication = Communication(self.to_ghosts, self.from_ghosts)
        found = domain(
            positions, self.types, self.neighbors, self.halo.atoms, communication, *self.parameters
        )
        memory["forces"].copy_(found.forces)
        memory["energies"].copy_(found.energy)
        totals = memory["totals"]
        totals[0], totals[10] = found.energy.sum(), found.nearest
        totals[1:10] = found.virial.flatten()
        self.send(DONE)

    # -- Rows of atoms and ghosts (mdops.domain.Communication)

    def to_ghosts(self, own: torch.Tensor) -> torch.Tensor:
        halo = self.halo
        assert halo is not None
        if not halo.is_alone:
            came = self.exchange(TO_GHOSTS, own[halo.border.nodes], len(halo.images.offsets) - 1 - halo.atoms)
            own = torch.cat((own, came))
        return own[halo.images.nodes]

    def from_ghosts(self, rows: torch.Tensor) -> torch.Tensor:
        halo = self.halo
        assert halo is not None
        sums = edge_scatter(rows, halo.images)
        own = sums[: halo.atoms]
        if not halo.is_alone:
            came = self.exchange(FROM_GHOSTS, sums[halo.atoms :], len(halo.border.nodes))
            own = own + edge_scatter(came, halo.border)
        return own

    def exchange(self, direction: int, rows: torch.Tensor, count: int) -> torch.Tensor:
        """Sends rows to other processes, and gives as many of theirs."""
        shared = [self.memory.rows(name, rows.dtype, rows.shape[1]) for name in ("border_rows", "halo_rows")]
        here, there = shared if direction == TO_GHOSTS else reversed(shared)
        here[: len(rows)] = rows
        self.send(direction, places_of(rows.shape[1], rows.itemsize))
        message = self.receive()
        if message is None or message[0] != EXCHANGED:
            raise ConnectionError  # another process failed, and LAMMPS ends
        return there[:count].to(rows.device, copy=True)

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
