"""A TensorFlow graph as data: nodes by name, their inputs and users, and the values of constants."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.tensorflow.messages import Message

_TYPES: dict[int, Any] = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 10: "?", 14: "bfloat16", 19: "<f2"}
_SPELLED = {
    1: "float_val",
    2: "double_val",
    3: "int_val",
    9: "int64_val",
    10: "bool_val",
    14: "half_val",
    19: "half_val",
}
_STRING = 7
# The most elements of a constant that does not list all its values: the last one is repeated.
_MOST_FILLED = 2**24
_MOST_DIMENSIONS = 8
# Operations that pass on their input.
_PASSING = ("Identity", "Cast", "Reshape", "StopGradient", "CheckNumerics")


class Node:
    """An operation.

    Attributes:
        name, op.
        inputs: the names of nodes whose outputs it takes, without those that only order operations.
    """

    def __init__(self, message: Message) -> None:
        self.name, self.op = _text(message, "name"), _text(message, "op")
        names = [bytes(value).decode() for value in message.get("input", [])]
        self.inputs = [name.partition(":")[0] for name in names if not name.startswith("^")]
        self._attributes = {
            _text(entry, "key"): entry["value"][-1] for entry in message.get("attr", []) if "value" in entry
        }

    def attribute(self, key: str, kind: str) -> Any:
        """The attribute: `kind` is "i", "f", "b", or "list i". Raises ModelFileError where it is absent."""
        value: Message | None = self._attributes.get(key)
        if value is None:
            raise ModelFileError(f"the operation {self.name} lacks the attribute {key}")
        if kind == "list i":
            return [int(i) for i in value.get("list", [{}])[-1].get("i", [])]
        if kind not in value:
            return 0  # zero is not written
        found = value[kind][-1]
        return float(found[-1]) if kind == "f" else found

    def tensor(self) -> Message | None:
        """The value of a constant, as a message."""
        value = self._attributes.get("value") if self.op == "Const" else None
        return value["tensor"][-1] if value and "tensor" in value else None


class Graph:
    """Nodes by name.

    Raises ModelFileError for a name that comes twice, or an input that is not there: the graph is cut short.
    """

    def __init__(self, message: Message) -> None:
        self.nodes: dict[str, Node] = {}
        self._takers: dict[str, list[str]] = {}
        for one in message.get("node", []):
            node = Node(one)
            if node.name in self.nodes:
                raise ModelFileError(f"it is damaged: it has two nodes with the name {node.name}")
            self.nodes[node.name] = node
        for node in self.nodes.values():
            for name in node.inputs:
                if name not in self.nodes:
                    raise ModelFileError(
                        f"it is damaged, or cut short: {node.name} takes {name}, which is not there"
                    )
                self._takers.setdefault(name, []).append(node.name)

    def __contains__(self, name: str) -> bool:
        return name in self.nodes

    def of_op(self, *ops: str) -> list[Node]:
        """The nodes with one of these operations, in the graph's order."""
        return [node for node in self.nodes.values() if node.op in ops]

    def forward(self, name: str) -> list[Node]:
        """The nodes that take this one's output, also through nodes that pass it on; without gradients."""
        found, left, seen = [], [name], {name}
        while left:
            for taker in self._takers.get(left.pop(), []):
                node = self.nodes[taker]
                if taker in seen or taker.startswith("gradients"):
                    continue
                seen.add(taker)
                if node.op in ("Identity", "Cast"):
                    left.append(taker)
                else:
                    found.append(node)
        return found

    def is_taken(self, name: str) -> bool:
        """Whether there is such a node, and an operation takes its output."""
        return name in self.nodes and bool(self.forward(name))

    def uses(self, matrix: str) -> int:
        """The number of products with a matrix, without gradients."""
        return sum(node.op == "MatMul" for node in self.forward(matrix))

    def origin(self, name: str, passing: Iterable[str] = _PASSING) -> Node:
        """The source of `name`, before operations that pass on their first input."""
        node, seen = self.nodes[name], set()
        while node.op in passing and node.inputs and node.name not in seen:
            seen.add(node.name)
            node = self.nodes[node.inputs[0]]
        return node

    def constants(self, pattern: str) -> Iterator[tuple[re.Match[str], np.ndarray]]:
        """The constants whose whole names match, with the matches."""
        known = re.compile(pattern)
        for name, node in self.nodes.items():
            found = known.fullmatch(name)
            if found and node.op == "Const":
                yield found, self.value(name)

    def value(self, name: str) -> np.ndarray:
        """The numbers of a constant. Raises ModelFileError where it is not a constant."""
        node = self.origin(name, ("Identity", "Cast"))
        tensor = node.tensor()
        if tensor is None:
            raise ModelFileError(f"{name} should be a constant, and is of the operation {node.op}")
        return array_of(tensor, node.name)

    def optional(self, name: str) -> np.ndarray | None:
        return self.value(name) if name in self.nodes else None

    def text(self, name: str) -> str | None:
        """The text of a constant; None where there is no such node."""
        if name not in self.nodes:
            return None
        tensor = self.nodes[name].tensor()
        if tensor is None or not tensor.get("string_val"):
            raise ModelFileError(f"{name} should be a text")
        return bytes(tensor["string_val"][0]).decode()


def array_of(tensor: Message, place: str) -> np.ndarray:
    """The array of a constant. Raises ModelFileError where its bytes do not fit its size, or it holds no numbers."""
    kind = tensor.get("dtype", [0])[-1]
    if kind not in _TYPES:
        raise ModelFileError(f"{place} holds no numbers (its data type is {kind})")
    shape = _shape(tensor, place)
    count = 1
    for size in shape:
        count *= size
    content = tensor.get("tensor_content", [b""])[-1]
    if len(content):
        values = _from_bytes(content, kind)
        if len(values) != count:
            raise ModelFileError(f"{place} has {len(content)} bytes, which do not fit its shape {shape}")
        return values.reshape(shape)
    spelled = tensor.get(_SPELLED[kind], [])
    values = _spelled(spelled, kind)
    if len(values) > count:
        raise ModelFileError(f"{place} has {len(values)} values, and its shape is {shape}")
    if len(values) < count:
        if count > _MOST_FILLED:
            raise ModelFileError(f"{place} has the shape {shape}, but only {len(values)} values")
        last = values[-1:] if len(values) else np.zeros(1, values.dtype)
        values = np.concatenate([values, np.broadcast_to(last, count - len(values))])
    return values.reshape(shape)


def _shape(tensor: Message, place: str) -> list[int]:
    dimensions = tensor.get("tensor_shape", [{}])[-1].get("dim", [])
    shape = [int(dimension.get("size", [0])[-1]) for dimension in dimensions]
    if len(shape) > _MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise ModelFileError(f"{place} has the shape {shape[: _MOST_DIMENSIONS + 1]}, which is impossible")
    return shape


def _from_bytes(content: Any, kind: int) -> np.ndarray:
    dtype = _TYPES[kind]
    if dtype == "bfloat16":
        return _bfloat16(np.frombuffer(content, "<u2"))
    if len(content) % np.dtype(dtype).itemsize:
        raise ModelFileError(f"a constant of {np.dtype(dtype)} numbers has {len(content)} bytes")
    return np.frombuffer(content, dtype)


def _spelled(values: list[Any], kind: int) -> np.ndarray:
    """Numbers that are given one by one, or packed."""
    if kind in (1, 2):
        return np.concatenate([np.empty(0, _TYPES[kind]), *values]).astype(_TYPES[kind])
    if kind in (14, 19):  # each is given as its 16 bits
        bits = np.array([value & 0xFFFF for value in values], "<u2")
        return _bfloat16(bits) if kind == 14 else bits.view("<f2")
    dtype = np.dtype(_TYPES[kind])
    if kind != 10 and any(not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max for value in values):
        raise ModelFileError("a whole number in it is too large for its type")
    return np.array(values, dtype)


def _bfloat16(bits: np.ndarray) -> np.ndarray:
    """The values as float32, which represents all of them."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _text(message: Message, key: str) -> str:
    return bytes(message.get(key, [b""])[-1]).decode()
