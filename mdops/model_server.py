"""Evaluates models for programs of the C core, in a Python process beside them, if the core has no kernels for the
models. The core starts `python -m mdops.model_server SOCKET MEMORY` with two open files;
source/core/python_process.h describes them."""

import json
import math
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
from mdops.system import System

HEADER = struct.Struct("<10q")  # the kind of message, eight numbers, and how many bytes follow
LOAD, NEIGHBORS, COMPUTE, FREE, EXCHANGED = 1, 2, 3, 4, 5  # kinds that the core sends
MODEL, DONE, FAILED, TO_GHOSTS, FROM_GHOSTS = 11, 12, 13, 14, 15  # kinds that it receives
FILE, UNSUPPORTED, NEIGHBORS_WRONG, INTERNAL = 2, 3, 4, 6  # the error codes of mdops.h


class Sizes(NamedTuple):
    """The sizes that determine the shapes of the shared arrays.

    Attributes:
        atoms, ghosts, width, ntypes: of the list, whose rows have `width` places.
        border, halo: rows of an exchange that go to other processes, and that come from there.
        places: of 8 bytes, that a row of an exchange takes at most; fparam, aparam, spin: numbers of parameters, and of
            an atom's magnetic moment, at most.
    """

    atoms: int
    ghosts: int
    width: int
    ntypes: int
    border: int
    halo: int
    places: int
    fparam: int
    aparam: int
    spin: int


class Memory:
    """The arrays that both processes share, in a memory file. For a GPU it is pinned."""

    def __init__(self, file: int, device: torch.device) -> None:
        self.file, self.device = file, device
        self._bytes = np.zeros(0, np.uint8)
        self._arrays: dict[str, np.ndarray] = {}

    def lay_out(self, s: Sizes) -> None:
        size = os.fstat(self.file).st_size
        if size != len(self._bytes):
            self._map(size)
        every = s.atoms + s.ghosts
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "positions": (np.float64, (every, 3)),
            "box": (np.float64, (12,)),
            "forces": (np.float64, (every, 3)),
            "energies": (np.float64, (s.atoms,)),
            "virials": (np.float64, (every, 3, 3)),
            "totals": (np.float64, (16,)),
            "fparam": (np.float64, (s.fparam,)),
            "aparam": (np.float64, (s.atoms * s.aparam,)),
            "spins": (np.float64, (every, s.spin)),
            "magnetic_forces": (np.float64, (every, s.spin)),
            "border_rows": (np.float64, (s.border * s.places,)),
            "halo_rows": (np.float64, (s.halo * s.places,)),
            "types": (np.int32, (every,)),
            "neighbors": (np.int32, (s.atoms, s.width)),
            "images": (np.int32, (0 if s.ghosts else s.atoms, s.width)),
            "counts": (np.int32, (s.atoms, s.ntypes)),
            "sources": (np.int32, (s.ghosts,)),
            "border": (np.int32, (s.border,)),
        }
        begin = 0
        for name, (dtype, shape) in shapes.items():
            count = int(np.prod(shape))
            self._arrays[name] = np.frombuffer(self._bytes, dtype, count, begin).reshape(shape)
            begin += (count * np.dtype(dtype).itemsize + 63) // 64 * 64

    def _map(self, size: int) -> None:
        """Maps the file again after it has grown."""
        before, self._bytes = self._bytes, np.frombuffer(mmap.mmap(self.file, size), np.uint8)
        if self.device.type == "cuda":  # memory that cannot be pinned also works, but is slower
            with torch.cuda.device(self.device):
                runtime = torch.cuda.cudart()
                if len(before):
                    runtime.cudaHostUnregister(before.ctypes.data)
                runtime.cudaHostRegister(self._bytes.ctypes.data, size, 0)

    def __getitem__(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self._arrays[name])

    def copied(self, name: str) -> torch.Tensor:
        """A copy on the device."""
        return self[name].to(self.device, copy=True)

    def rows(self, name: str, dtype: torch.dtype, width: int) -> torch.Tensor:
        """The rows of an exchange; each begins at a whole number of 8 bytes."""
        places = places_of(width, dtype.itemsize) * 8 // dtype.itemsize
        every = self[name].view(dtype)
        return every[: len(every) // places * places].view(-1, places)[:, :width]


def places_of(width: int, itemsize: int) -> int:
    """How many 8-byte places a row takes."""
    return -(-width * itemsize // 8)


class Halo(NamedTuple):
    """How rows are passed between atoms and ghosts.

    Attributes:
        atoms: N; border: the atoms that are ghosts of other processes.
        images: for each of the N + M rows, its atom, or N + the index of the row received from another process.
        is_alone: there is no other process.
    """

    atoms: int
    border: EdgeIndex
    images: EdgeIndex
    is_alone: bool


class Server:
    """Answers one program until it closes the connection."""

    def __init__(self, channel: socket.socket, memory: int) -> None:
        self.channel, self.file = channel, memory
        self.domains: dict[int, Domain] = {}
        self.loaded = 0
        self.most = (0, 0, 0, 0)  # of all models: places of an exchange, parameters, numbers of a moment
        self.memory = Memory(memory, torch.device("cpu"))
        self.neighbors: NeighborList | None = None
        self.halo: Halo | None = None
        self.types = torch.zeros(0, dtype=torch.int32)

    def serve(self) -> None:
        answers: dict[int, Callable[[tuple[int, ...], str], None]] = {
            LOAD: self.load,
            NEIGHBORS: self.take_neighbors,
            COMPUTE: self.compute,
            FREE: self.free,
        }
        while (message := self.receive()) is not None:
            kind, numbers, text = message
            try:
                answers[kind](numbers, text)
            except UnsupportedModelError as error:
                self.send(FAILED, UNSUPPORTED, text=str(error))
            except MDOpsError as error:
                atom = getattr(error, "atom", None)
                code = FILE if kind == LOAD else NEIGHBORS_WRONG
                self.send(FAILED, code, 0 if atom is None else atom + 1, text=str(error))
            except ConnectionError:
                return  # the program has ended
            except Exception as error:
                traceback.print_exc()
                text = f"mdops failed: {type(error).__name__}: {error}; please report it"
                self.send(FAILED, INTERNAL, text=text)

    # -- Requests of the program

    def load(self, numbers: tuple[int, ...], text: str) -> None:
        precision, overflow, device, condition, path = text.split("\n", 4)
        charge_spin = [float(x) for x in condition.split()] or None
        if device != "cpu" and not torch.cuda.is_available():
            raise UnsupportedModelError(f"device is {device}, and PyTorch sees no GPU")
        potential = load(path, dtype=precision, device=device, overflow=cast(Overflow, overflow))
        if potential.modifier is not None:
            raise UnsupportedModelError(
                "the model has charges beyond the cutoff (a modifier dipole_charge), for which programs take a file "
                "that `mdops convert IN OUT.safetensors` writes"
            )
        domain = Domain(potential, charge_spin)
        if not self.loaded:
            self.memory = Memory(self.file, potential.device)
        self.loaded += 1
        self.domains[self.loaded] = domain
        sizes, spin = potential.parameter_sizes, potential.model.spin
        own = (
            places_of(domain.exchange_width, potential.dtype.itemsize),
            sizes["fparam"],
            sizes["aparam"],
            3 * (spin is not None),
        )
        self.most = cast(tuple[int, int, int, int], tuple(map(max, self.most, own)))
        about = {
            "elements": potential.type_map if spin is None else potential.type_map[: spin.ntypes],
            "cutoff": potential.cutoff,
            "shortest": potential.r_min or 0.0,
            "fparam": sizes["fparam"],
            "aparam": sizes["aparam"],
            "needs_fparam": sizes["fparam"] > 0 and "fparam" not in potential.model.default_parameters,
            "passes_messages": domain.exchange_width > 0,
            **({} if spin is None else {"magnetic": list(spin.use_spin)}),
            "virtual_scale": max(spin.virtual_scale) if spin is not None and spin.paired else 0.0,
        }
        self.send(MODEL, self.loaded, *own, text=json.dumps(about))

    def free(self, numbers: tuple[int, ...], text: str) -> None:
        """Numbers: which model. No message is sent back."""
        self.domains.pop(numbers[0], None)

    def take_neighbors(self, numbers: tuple[int, ...], text: str) -> None:
        """Numbers: `Sizes` of a list, and whether there is no other process."""
        sizes = Sizes._make((*numbers[:6], *self.most))
        memory, atoms, ghosts = self.memory, sizes.atoms, sizes.ghosts
        memory.lay_out(sizes)
        self.types, near, counts = map(memory.copied, ("types", "neighbors", "counts"))
        images = torch.zeros_like(near) if ghosts else memory.copied("images")
        # An infinite cutoff fits every model: no model uses pairs beyond its own cutoff.
        self.neighbors = NeighborList(near, images, counts, math.inf)
        self.halo, is_alone = None, bool(numbers[6])
        if ghosts or not is_alone:
            rows = torch.nn.functional.pad
            self.neighbors = NeighborList(
                rows(near, (0, 0, 0, ghosts), value=-1),
                rows(images, (0, 0, 0, ghosts)),
                rows(counts, (0, 0, 0, ghosts)),
                math.inf,
            )
            itself = torch.arange(atoms, dtype=torch.int32, device=near.device)
            images_of = EdgeIndex.of(torch.cat((itself, memory.copied("sources"))), atoms + sizes.halo)
            self.halo = Halo(atoms, EdgeIndex.of(memory.copied("border"), atoms), images_of, is_alone)
        self.send(DONE)

    def compute(self, numbers: tuple[int, ...], text: str) -> None:
        """Numbers: which model, threads, how many frame and atomic parameters are given, and whether atomic virials are
        requested."""
        assert self.neighbors is not None
        number, threads, frame, atomic, atom_virial = numbers[:5]
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        domain, memory, halo = self.domains[number], self.memory, self.halo
        positions, box = memory.copied("positions"), memory.copied("box")
        atoms = len(memory["energies"])
        fparam = memory.copied("fparam")[:frame] if frame else None
        aparam = memory.copied("aparam")[: atoms * atomic].view(atoms, atomic) if atomic else None
        more: dict[str, Any] = {"atom_virial": bool(atom_virial)}
        if domain.potential.model.spin is not None:
            more["spins"] = memory.copied("spins")
        if halo is None:
            cell, pbc = box[:9].view(1, 3, 3), box[9:].view(1, 3) > 0
            system = System(positions, self.types, cell, pbc, torch.zeros_like(self.types))
            found = domain.whole(system, self.neighbors, fparam, aparam, **more)
        else:
            exchange = Communication(self.to_ghosts, self.from_ghosts)
            listed = self.types, self.neighbors, halo.atoms, exchange
            found = domain(positions, *listed, fparam, aparam, **more)
        memory["forces"].copy_(found.forces)
        memory["energies"].copy_(found.energy)
        if found.atom_virial is not None:
            memory["virials"].copy_(found.atom_virial)
        if found.force_mag is not None:
            memory["magnetic_forces"].copy_(found.force_mag)
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
        """Sends rows to other processes, and returns the same number of theirs."""
        shared = [self.memory.rows(name, rows.dtype, rows.shape[1]) for name in ("border_rows", "halo_rows")]
        here, there = shared if direction == TO_GHOSTS else reversed(shared)
        here[: len(rows)] = rows
        self.send(direction, places_of(rows.shape[1], rows.itemsize))
        message = self.receive()
        if message is None or message[0] != EXCHANGED:
            raise ConnectionError  # another process failed
        return there[:count].to(rows.device, copy=True)

    # -- Messages

    def send(self, kind: int, *numbers: int, text: str = "") -> None:
        body = text.encode()
        padded = (*numbers, *(0,) * (8 - len(numbers)))
        self.channel.sendall(HEADER.pack(kind, *padded, len(body)) + body)

    def receive(self) -> tuple[int, tuple[int, ...], str] | None:
        """The next message; None if the program has ended."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program; this process ends with it
    channel, memory = (int(word) for word in sys.argv[1:3])
    with socket.socket(fileno=channel) as there:
        Server(there, memory).serve()


if __name__ == "__main__":
    main()
