"""DeePMD-kit's text serialisations: YAML, and the same tree as JSON."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mdops.errors import ModelFileError
from mdops.io.model_file import ModelFile
from mdops.io.serialized import header_of, model_file_from
from mdops.io.tree import Budget, mapping, plain

_DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
# As in DeePMD-kit's YAML library (YAML 1.1): 1e5 is text, which the library writes without quotes.
_FLOAT = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?")
_MAX_DEPTH = 200  # a model's tree is about 12 deep
_WORDS: dict[str, Any] = {"null": None, "~": None, "": None, "true": True, "false": False}


def read_json(path: Path) -> ModelFile:
    """Read a JSON serialisation. Raises ModelFileError, json.JSONDecodeError."""
    data = path.read_bytes()
    return model_of_document(json.loads(data), len(data), "JSON")


def read_yaml(path: Path) -> ModelFile:
    """Read a YAML serialisation. Raises ModelFileError, yaml.YAMLError."""
    data = path.read_bytes()
    return model_of_document(_Builder(data).build(), len(data), "YAML")


def encode_json(model: dict[str, Any], source: dict[str, Any]) -> bytes:
    """The bytes of a JSON serialisation."""
    return json.dumps(_spelled_out(header_of(model, source)), separators=(",", ":")).encode()


def encode_yaml(model: dict[str, Any], source: dict[str, Any]) -> bytes:
    """The bytes of a YAML serialisation."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: bytes = yaml.dump(
        _spelled_out(header_of(model, source)), Dumper=dumper, sort_keys=False, encoding="utf-8"
    )
    return text


def _spelled_out(node: Any) -> Any:
    """The tree with every array as a node that `_array` reads; numbers keep all their digits."""
    if isinstance(node, dict):
        return {key: _spelled_out(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_spelled_out(value) for value in node]
    if isinstance(node, np.ndarray):
        head = {"@class": "np.ndarray", "@is_variable": True, "@version": 1}
        # Nested lists do not tell the shape of an empty array; DeePMD-kit skips the key.
        shape = {} if node.size else {"shape": list(node.shape)}
        return {**head, "dtype": node.dtype.name, **shape, "value": node.tolist()}
    return node


def model_of_document(header: Any, size: int, name: str) -> ModelFile:
    """The model of a document that was read from `size` bytes; `name` is its format. Raises ModelFileError."""
    if not isinstance(header, dict):
        raise ModelFileError("it is text, but not a model of DeePMD-kit")
    budget = Budget(size)

    def leaf(node: Any, place: str) -> Any:
        return _array(node, place, budget)

    return model_file_from(mapping(header, "the document"), leaf, budget, name)


def _array(node: Any, place: str, budget: Budget) -> Any:
    """The array that a node {"@class": "np.ndarray", "dtype": ..., "value": [...]} spells out."""
    if not isinstance(node, dict):
        return node
    if node.get("@class") != "np.ndarray" or node.get("dtype") not in _DTYPES or "value" not in node:
        raise ModelFileError(f"{place} is not an array: its class, dtype or value is missing or unknown")
    plain(node["value"], budget)  # spends the budget before NumPy spends the memory
    array = np.array(node["value"])  # without a dtype first, so that text never passes for a number
    if array.dtype.kind not in "fiub" and array.size:
        raise ModelFileError(f"{place} holds something that is not a number")
    array = array.astype(node["dtype"])
    return array if array.size else array.reshape(node.get("shape", array.shape))


class _Builder:
    """Builds plain values from YAML events.

    PyYAML's own composer recurses in C, and a line of 200,000 brackets ends the process; the events do not.
    Tags have no effect: the result is dicts, lists, text, numbers, booleans and None.
    """

    def __init__(self, data: bytes) -> None:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self.events = yaml.parse(data, Loader=loader)
        self.anchors: dict[str, Any] = {}
        self.stack: list[
            tuple[Any, list[Any]]
        ] = []  # the open containers, each with the key that waits for a value
        self.result: Any = None
        self.documents = 0

    def build(self) -> Any:
        for event in self.events:
            if isinstance(event, yaml.ScalarEvent):
                self._put(_scalar(event), event.anchor)
            elif isinstance(event, yaml.MappingStartEvent):
                self._open({}, event.anchor)
            elif isinstance(event, yaml.SequenceStartEvent):
                self._open([], event.anchor)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.stack.pop()
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in self.anchors:
                    raise ModelFileError(f"the alias *{event.anchor} refers to nothing")
                self._put(self.anchors[event.anchor], None)
            elif isinstance(event, yaml.DocumentStartEvent):
                self.documents += 1
                if self.documents > 1:
                    raise ModelFileError("it holds more than one YAML document")
        return self.result

    def _open(self, container: Any, anchor: str | None) -> None:
        if len(self.stack) >= _MAX_DEPTH:
            raise ModelFileError(f"it is nested more than {_MAX_DEPTH} deep, which no model is")
        self._put(container, anchor)
        self.stack.append((container, []))

    def _put(self, value: Any, anchor: str | None) -> None:
        if anchor is not None:
            self.anchors[anchor] = value
        if not self.stack:
            self.result = value
            return
        container, key = self.stack[-1]
        if isinstance(container, list):
            container.append(value)
        elif key:
            container[key.pop()] = value
        elif not isinstance(value, str) or value in container:
            raise ModelFileError(f"the key {value!r} is not text, or comes twice")
        else:
            key.append(value)


def _scalar(event: yaml.ScalarEvent) -> Any:
    """Quoted text is text; a plain word is None, a boolean, a number, or else text."""
    text: str = event.value
    if not event.implicit[0]:
        return text
    if _FLOAT.fullmatch(text):  # as nearly all are
        return float(text)
    if _INTEGER.fullmatch(text):
        return int(text)
    return _WORDS.get(text.lower(), text)
