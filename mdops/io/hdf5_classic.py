"""A reader for the classic layout of HDF5 (superblock 0 and 1), which is what DeePMD-kit writes.

The classic layout has no checksums, and one changed byte can end the process inside the HDF5 library. Here
every address and length is checked against the file before it is used. Only what a model file needs is here:
attributes of the root group that are text, and contiguous or compact datasets of numbers in the root group.
After the "HDF5 File Format Specification, Version 3.0", whose section numbers the functions name.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mdops.errors import ModelFileError

_UNDEFINED = 2**64 - 1
# IEEE floats by size in bytes: exponent bits, mantissa bits, exponent bias
_IEEE = {2: (5, 10, 15), 4: (8, 23, 127), 8: (11, 52, 1023)}


@dataclass(frozen=True)
class _Message:
    kind: int
    at: int
    size: int


class ClassicFile:
    """Attributes and datasets of the root group of a classic HDF5 file held in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        root = 56 if data[8:9] == b"\0" else 60  # II.A: the root group's symbol table entry
        if self._number(13, 1) != 8 or self._number(14, 1) != 8 or self._number(root - 32, 8) != 0:
            raise ModelFileError(
                "its HDF5 superblock is damaged, or of a kind that DeePMD-kit does not write"
            )
        self.root = self._messages(self._number(root + 8, 8))
        self.links = self._links(self.root)

    def text(self, name: str) -> str | None:
        """The text of an attribute of the root group; None where there is no such attribute."""
        for message in self.root:
            if message.kind == 0x0C:
                found, kind, at, size = self._attribute(message)
                if found == name.encode():
                    return self._string(kind, at, size).decode()
        return None

    def array(self, name: str) -> tuple[np.ndarray, int | None] | None:
        """A dataset of the root group and where its bytes begin (None: it has none). None if there is no dataset."""
        address = self.links.get(name.removeprefix("/").encode())
        if address is None:
            return None
        places = {m.kind: m for m in self._messages(address)}
        if not {0x01, 0x03, 0x08} <= places.keys():
            raise ModelFileError(f"the dataset {name} is damaged")
        dtype = self._dtype(places[0x03])
        shape = self._shape(places[0x01])
        count = int(np.prod(shape, dtype=object))
        start, size = self._layout(places[0x08], name)
        if size != count * dtype.itemsize:
            raise ModelFileError(
                f"the dataset {name} has {size} bytes, and its shape needs {count * dtype.itemsize}"
            )
        if not size:
            return np.empty(shape, dtype.newbyteorder("=")), None
        array = np.frombuffer(self._take(start, size), dtype).reshape(shape)
        return array.astype(dtype.newbyteorder("=")), start

    # Reading of bytes

    def _take(self, at: int, size: int) -> bytes:
        if at < 0 or size < 0 or at + size > len(self.data):
            raise ModelFileError("its HDF5 structure is damaged: an address in it lies outside of the file")
        return self.data[at : at + size]

    def _number(self, at: int, size: int) -> int:
        return int.from_bytes(self._take(at, size), "little")

    def _expect(self, at: int, signature: bytes) -> None:
        if self._take(at, len(signature)) != signature:
            raise ModelFileError(
                f"its HDF5 structure is damaged: {signature[:4]!r} is not where it should be"
            )

    # Structures

    def _messages(self, address: int) -> list[_Message]:
        """The messages of a version 1 object header and of its continuation blocks (IV.A.1.a)."""
        self._expect(address, b"\x01\0")
        count = self._number(address + 2, 2)
        blocks = [(address + 16, self._number(address + 8, 4))]
        messages: list[_Message] = []
        while blocks and len(messages) < count:
            at, left = blocks.pop(0)
            self._take(at, left)
            while left >= 8 and len(messages) < count:
                kind, size, flags = self._number(at, 2), self._number(at + 2, 2), self._number(at + 4, 1)
                if size + 8 > left or flags & 2:
                    raise ModelFileError("an HDF5 object header is damaged")
                messages.append(_Message(kind, at + 8, size))
                if kind == 0x10:
                    blocks.append((self._number(at + 8, 8), self._number(at + 16, 8)))
                at, left = at + 8 + size, left - 8 - size
        if len(messages) != count:
            raise ModelFileError("an HDF5 object header is damaged")
        return messages

    def _links(self, messages: list[_Message]) -> dict[bytes, int]:
        """Names and object header addresses of the root group (III.A.1, III.B, III.C, III.D)."""
        table = next((m for m in messages if m.kind == 0x11), None)
        if table is None:
            raise ModelFileError("its HDF5 root group is damaged")
        tree, heap = self._number(table.at, 8), self._number(table.at + 8, 8)
        self._expect(heap, b"HEAP\0")
        names = self._take(self._number(heap + 24, 8), self._number(heap + 8, 8))
        links: dict[bytes, int] = {}
        for node in self._leaves(tree):
            self._expect(node, b"SNOD\x01")
            for i in range(self._number(node + 6, 2)):
                entry = node + 8 + 40 * i
                offset = self._number(entry, 8)
                end = names.find(b"\0", offset)
                if end <= offset or names[offset:end] in links:
                    raise ModelFileError("a name in its HDF5 root group is damaged")
                links[names[offset:end]] = self._number(entry + 8, 8)
        return links

    def _leaves(self, root: int) -> list[int]:
        """Addresses of a group B-tree's symbol nodes."""
        level = [root]
        depth = self._number(root + 5, 1)
        while True:
            below: list[int] = []
            for node in level:
                self._expect(node, b"TREE\0" + bytes([depth]))
                below += [self._number(node + 32 + 16 * i, 8) for i in range(self._number(node + 6, 2))]
            if len(set(below)) != len(below):
                raise ModelFileError("the HDF5 group tree is damaged: it runs in a circle")
            if depth == 0:
                return below
            level, depth = below, depth - 1

    def _shape(self, message: _Message) -> tuple[int, ...]:
        """A dataspace (IV.A.2.b)."""
        version, rank = self._number(message.at, 1), self._number(message.at + 1, 1)
        if version not in (1, 2) or rank > 32:
            raise ModelFileError("an HDF5 dataspace is damaged")
        if version == 2 and self._number(message.at + 3, 1) == 2:
            raise ModelFileError("a dataset of it is empty")
        first = message.at + (8 if version == 1 else 4)
        return tuple(self._number(first + 8 * i, 8) for i in range(rank))

    def _dtype(self, message: _Message) -> np.dtype[Any]:
        """A datatype of numbers (IV.A.2.d): little-endian IEEE floats and integers of the usual sizes."""
        at = message.at
        kind, bits, size = self._number(at, 1) & 15, self._number(at + 1, 3), self._number(at + 4, 4)
        offset, precision = self._number(at + 8, 2), self._number(at + 10, 2)
        if offset == 0 and precision == 8 * size and bits & 1 == 0:
            if kind == 1 and size in _IEEE:
                found = (self._number(at + 13, 1), self._number(at + 15, 1), self._number(at + 16, 4))
                if found == _IEEE[size] and bits & 0x40 == 0:
                    return np.dtype(f"<f{size}")
            if kind == 0 and size in (1, 2, 4, 8):
                return np.dtype(f"<{'i' if bits & 8 else 'u'}{size}")
        raise ModelFileError("a dataset of it is damaged, or does not hold numbers")

    def _layout(self, message: _Message, name: str) -> tuple[int, int]:
        """Where a dataset's bytes begin, and how many there are (IV.A.2.i)."""
        version, kind = self._number(message.at, 1), self._number(message.at + 1, 1)
        if version in (3, 4) and kind == 0:
            return message.at + 4, self._number(message.at + 2, 2)
        if version not in (3, 4) or kind != 1:
            raise ModelFileError(
                f"the dataset {name} is damaged, or compressed (`h5repack -l CONTI -f NONE` undoes that)"
            )
        start, size = self._number(message.at + 2, 8), self._number(message.at + 10, 8)
        if start == _UNDEFINED and size:
            raise ModelFileError(f"the dataset {name} was never written")
        return start, size

    def _attribute(self, message: _Message) -> tuple[bytes, int, int, int]:
        """Name, address of the datatype, address and size of the data of an attribute (IV.A.2.m)."""
        version = self._number(message.at, 1)
        if version not in (1, 2, 3):
            raise ModelFileError("an HDF5 attribute is damaged")
        sizes = [self._number(message.at + i, 2) for i in (2, 4, 6)]
        name = message.at + (9 if version == 3 else 8)
        steps = [-(-s // 8) * 8 for s in sizes] if version == 1 else sizes
        kind = name + steps[0]
        data = kind + steps[1] + steps[2]
        end = message.at + message.size
        if data > end:
            raise ModelFileError("an HDF5 attribute is damaged")
        return self._take(name, sizes[0]).rstrip(b"\0"), kind, data, end - data

    def _string(self, kind: int, at: int, size: int) -> bytes:
        """Text of fixed length, or of variable length in the global heap (III.E, IV.A.2.d)."""
        what = self._number(kind, 1) & 15
        if what == 3:
            return self._take(at, min(size, self._number(kind + 4, 4))).rstrip(b"\0")
        if what != 9 or self._number(kind + 1, 1) & 15 != 1:
            raise ModelFileError("an attribute of it that should be text is not, or is damaged")
        length, heap, wanted = self._number(at, 4), self._number(at + 4, 8), self._number(at + 12, 4)
        self._expect(heap, b"GCOL\x01")
        end = heap + self._number(heap + 8, 8)
        entry = heap + 16
        while entry + 16 <= end:
            index, stored = self._number(entry, 2), self._number(entry + 8, 8)
            if index == wanted and length <= stored:
                return self._take(entry + 16, length)
            if index == 0:
                break
            entry += 16 + -(-stored // 8) * 8
        raise ModelFileError("the text of an attribute of it is missing")
