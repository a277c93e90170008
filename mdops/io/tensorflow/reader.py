"""Read a frozen TensorFlow graph of DeePMD-kit."""

import re
from pathlib import Path

from mdops.errors import ModelFileError
from mdops.io.model_file import ModelFile
from mdops.io.tensorflow.graph import Graph
from mdops.io.tensorflow.model import model_tree
from mdops.io.tensorflow.proto_text import decode_text
from mdops.io.tensorflow.wire import decode
from mdops.io.tree import Budget, plain

_TEXT = re.compile(rb"(?:\s|#[^\n]*\n)*node\s*:?\s*\{")


def is_graph(head: bytes) -> bool:
    """Whether a file that begins like this is a graph, in binary: a node, with its name and then its operation."""
    if head[:1] != b"\n":
        return False
    at = 1
    while at < min(len(head), 5) and head[at] & 0x80:
        at += 1
    name = head[at + 1 : at + 3]
    return name[:1] == b"\n" and len(name) == 2 and head[at + 3 + name[1] : at + 4 + name[1]] == b"\x12"


def is_graph_text(head: bytes) -> bool:
    """Whether a file that begins like this is a graph as text."""
    return _TEXT.match(head) is not None


def read_graph(path: Path) -> ModelFile:
    """Read a `.pb` file. Raises ModelFileError, UnsupportedModelError."""
    data = path.read_bytes()
    graph = Graph(decode(memoryview(data), "GraphDef"))
    return _model_file(graph, len(data), "TensorFlow graph (.pb)")


def read_graph_text(path: Path) -> ModelFile:
    """Read a `.pbtxt` file. Raises ModelFileError, UnsupportedModelError."""
    text = path.read_bytes().decode()
    return _model_file(Graph(decode_text(text, "GraphDef")), len(text), "TensorFlow graph (.pbtxt)")


def _model_file(graph: Graph, size: int, name: str) -> ModelFile:
    if not graph.nodes:
        raise ModelFileError("it is a TensorFlow graph without nodes")
    tree, source = model_tree(graph)
    return ModelFile(tree, {"format": name, **plain(source, Budget(size))})
