"""Protocol Buffers' wire format, as far as graphs need it: every length is checked before it is used."""

from collections.abc import Iterator

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.tensorflow.messages import BYTES, DOUBLE, FIELDS, FLOAT, INTEGER, Message

_LONGEST_VARINT = 10
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_FLOATS = {FLOAT: (_FOUR_BYTES, "<f4"), DOUBLE: (_EIGHT_BYTES, "<f8")}
_CUT = "it is damaged, or cut short"


def decode(data: memoryview, kind: str) -> Message:
    """The fields of a message of that kind. Bytes stay views of `data`. Raises ModelFileError."""
    known, message = FIELDS[kind], Message()
    for number, wire, value in _fields(data):
        if number not in known:
            continue
        name, held = known[number]
        message.setdefault(name, []).extend(_values(value, wire, held, f"{kind}.{name}"))
    return message


def _values(value: int | memoryview, wire: int, held: str, place: str) -> list[object]:
    """The values that one field adds to its name."""
    if held == INTEGER:
        if isinstance(value, int):
            return [_signed(value)]
        return list(map(_signed, _varints(value)))
    if isinstance(value, int):
        raise ModelFileError(f"{_CUT}: {place} is a number")
    if held in _FLOATS:
        alone, dtype = _FLOATS[held]
        size = np.dtype(dtype).itemsize
        if wire not in (alone, _LENGTH) or len(value) % size:
            raise ModelFileError(f"{_CUT}: {place} holds no {held} numbers")
        return [np.frombuffer(value, dtype)]
    if wire != _LENGTH:
        raise ModelFileError(f"{_CUT}: {place} is a number")
    return [value] if held == BYTES else [decode(value, held)]


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Number, wire type and value of each field."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _LENGTH:
            size, at = _varint(data, at)
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if wire == _EIGHT_BYTES else 4
        else:
            raise ModelFileError(f"{_CUT}: a field of it has the wire type {wire}")
        if number == 0 or size > end - at:
            raise ModelFileError(f"{_CUT}: a field of it has {size} bytes, and {end - at} are there")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number that begins there, below 2^64, and where it ends."""
    value = 0
    for k in range(min(_LONGEST_VARINT, len(data) - at)):
        byte = data[at + k]
        value |= (byte & 0x7F) << (7 * k)
        if byte < 0x80:
            return value & (2**64 - 1), at + k + 1
    raise ModelFileError(f"{_CUT}: a number in it has no end")


def _varints(data: memoryview) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
