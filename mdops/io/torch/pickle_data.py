"""An interpreter of pickles that builds data and nothing else.

Python's own unpickler imports and calls what a file names. This one never looks a name up: a name becomes an
inert `Named`, and the few calls that PyTorch writes for tensors and containers are known here by name. Any
other call or object becomes an inert `Object` with its arguments and attributes. Thus opening a file cannot
run anything.
"""

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mdops.errors import ModelFileError


@dataclass(frozen=True)
class Named:
    """A name that a pickle refers to, such as "torch.DoubleStorage"."""

    name: str


@dataclass(eq=False)
class Object:
    """An object of a class that is not known here: its class, arguments and attributes."""

    name: str
    arguments: Any = ()
    attributes: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A strided view of a storage, whose bytes are a member of the archive. Counts are of elements."""

    storage: str
    storage_type: str
    storage_size: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


_PAIR = 2
_MARK = object()


def load(data: bytes) -> Any:
    """The value that a pickle describes. Raises ModelFileError if it is damaged."""
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "STOP":
            if len(machine.stack) != 1:
                break
            return machine.stack[0]
        machine.step(opcode.name, argument)
    raise ModelFileError("its pickle is damaged: it does not leave one value")


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Carry out one opcode."""
        if name in _IGNORED:
            return
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memo[int(argument)])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.stack[-1]
        elif name in _STEPS:
            _STEPS[name](self, argument)
        else:
            raise ModelFileError(f"its pickle uses the instruction {name}, which no model needs")

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ModelFileError("its pickle is damaged: a value is missing")
        return value

    def above_mark(self) -> list[Any]:
        at = max(i for i, value in enumerate(self.stack) if value is _MARK)
        values = self.stack[at + 1 :]
        del self.stack[at:]
        return values

    def set_items(self, pairs: list[Any]) -> None:
        if len(pairs) % _PAIR or not isinstance(self.stack[-1], dict):
            raise ModelFileError("its pickle is damaged: a mapping is not complete")
        self.stack[-1].update(zip(pairs[::2], pairs[1::2], strict=True))

    def extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise ModelFileError("its pickle is damaged: a list is not complete")
        self.stack[-1].extend(values)

    def make_tuple(self, size: int) -> None:
        values = [self.pop() for _ in range(size)]
        self.stack.append(tuple(reversed(values)))

    def name(self, argument: str) -> None:
        self.stack.append(Named(argument.replace(" ", ".")))

    def name_from_stack(self) -> None:
        last, module = self.pop(), self.pop()
        self.stack.append(Named(f"{module}.{last}"))

    def call(self) -> None:
        arguments, function = self.pop(), self.pop()
        if not isinstance(function, Named) or not isinstance(arguments, tuple):
            raise ModelFileError("its pickle calls something that is not a name")
        known = _CALLS.get(function.name)
        self.stack.append(known(*arguments) if known else Object(function.name, arguments))

    def build(self) -> None:
        state, target = self.pop(), self.stack[-1]
        # An OrderedDict of PyTorch has attributes too ("_metadata"); a model has no use for them.
        if isinstance(target, Object):
            if isinstance(state, dict):
                target.attributes.update(state)
            else:
                target.attributes["state"] = state

    def storage(self) -> None:
        identity = self.pop()
        match identity:
            case ("storage", Named(name=kind), str(key), _, int(size)):
                self.stack.append((kind, key, size))
            case _:
                raise ModelFileError("its pickle refers to a tensor's storage in an unknown way")


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
    kind, key, size = storage
    numbers = (offset, *shape, *strides)
    if len(shape) != len(strides) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ModelFileError("its pickle describes a tensor of impossible shape")
    return Tensor(key, kind, size, offset, tuple(shape), tuple(strides))


# What PyTorch writes for tensors, parameters and typed containers, and what each gives here.
_CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
    "torch.jit._pickle.restore_type_tag": lambda value, _: value,
    "torch.jit._pickle.build_intlist": lambda values: values,
    "torch.jit._pickle.build_doublelist": lambda values: values,
    "torch.jit._pickle.build_boollist": lambda values: values,
    "torch.jit._pickle.build_tensorlist": lambda values: values,
    "torch.Size": tuple,
    "collections.OrderedDict": lambda *pairs: dict(*pairs),
}

_IGNORED = frozenset({"PROTO", "FRAME"})
_LITERALS = frozenset(
    [
        "BININT",
        "BININT1",
        "BININT2",
        "LONG1",
        "LONG4",
        "INT",
        "LONG",
        "FLOAT",
        "BINFLOAT",
        "BINUNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE8",
        "UNICODE",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
        "BINSTRING",
        "SHORT_BINSTRING",
        "STRING",
    ]
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,  # order and number of members are enough: no model needs a set
    "MARK": lambda: _MARK,
}
_STEPS: dict[str, Callable[[_Machine, Any], Any]] = {
    "TUPLE": lambda m, _: m.stack.append(tuple(m.above_mark())),
    "TUPLE1": lambda m, _: m.make_tuple(1),
    "TUPLE2": lambda m, _: m.make_tuple(2),
    "TUPLE3": lambda m, _: m.make_tuple(3),
    "LIST": lambda m, _: m.stack.append(m.above_mark()),
    "APPEND": lambda m, _: m.extend([m.pop()]),
    "APPENDS": lambda m, _: m.extend(m.above_mark()),
    "ADDITEMS": lambda m, _: m.extend(m.above_mark()),
    "SETITEM": lambda m, _: m.set_items([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, _: m.set_items(m.above_mark()),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": lambda m, _: m.name_from_stack(),
    "REDUCE": lambda m, _: m.call(),
    "NEWOBJ": lambda m, _: m.call(),
    "BUILD": lambda m, _: m.build(),
    "BINPERSID": lambda m, _: m.storage(),
}
