"""Protocol Buffers' text format (`.pbtxt`), as far as graphs need it. The messages are those of the wire format."""

import re

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.tensorflow.messages import BYTES, DOUBLE, FIELDS, FLOAT, TYPES, Message

_TOKEN = re.compile(
    r"""(?:\s|\#[^\n]*)*(?:
        (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
        |(?P<word>[^\s{}<>\[\]:;,"'\#]+)
        |(?P<mark>[{}<>\[\]:;,])
        |(?P<end>\Z))""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_LETTERS = {"n": 10, "r": 13, "t": 9, "a": 7, "b": 8, "f": 12, "v": 11}
_CLOSING = {"{": "}", "<": ">"}
_MOST_LEVELS = 32


def decode_text(text: str, kind: str) -> Message:
    """The fields of a message of that kind. Raises ModelFileError."""
    return _message(_Tokens(text), FIELDS[kind], "", 0)


class _Tokens:
    """The words, texts and marks of a text, one after the other."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.advance()

    def advance(self) -> None:
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise ModelFileError(f"it is damaged, or cut short at character {self.at}")
        self.kind, self.at = str(found.lastgroup), found.end()
        self.value = found.group(self.kind)

    def take(self) -> str:
        value = self.value
        self.advance()
        return value

    def take_if(self, *marks: str) -> str | None:
        return self.take() if self.kind == "mark" and self.value in marks else None


def _message(tokens: _Tokens, known: dict[int, tuple[str, str]], closing: str, level: int) -> Message:
    """The fields up to the closing mark, or to the end of the text."""
    if level > _MOST_LEVELS:
        raise ModelFileError(f"its messages are nested more than {_MOST_LEVELS} deep")
    message, kinds = Message(), dict(known.values())
    while True:
        if tokens.kind == "end" if not closing else tokens.take_if(closing):
            return message
        if tokens.kind != "word":
            raise ModelFileError(
                f"it is damaged, or cut short: at character {tokens.at} there is no name of a field"
            )
        name = tokens.take()
        tokens.take_if(":")
        values = _values(tokens, kinds.get(name), level)
        if name in kinds:
            message.setdefault(name, []).extend(values)
        tokens.take_if(";", ",")


def _values(tokens: _Tokens, held: str | None, level: int) -> list[object]:
    if not tokens.take_if("["):
        return [_value(tokens, held, level)]
    values: list[object] = []
    while not tokens.take_if("]"):
        values.append(_value(tokens, held, level))
        tokens.take_if(",")
    return values


def _value(tokens: _Tokens, held: str | None, level: int) -> object:
    opened = tokens.take_if("{", "<")
    if opened:
        return _message(tokens, FIELDS.get(held or "", {}), _CLOSING[opened], level + 1)
    if tokens.kind == "text":
        parts = []
        while tokens.kind == "text":
            parts.append(_bytes(tokens.take()[1:-1]))
        if held in (None, BYTES):
            return memoryview(b"".join(parts))
    elif tokens.kind == "word":
        word = tokens.take()
        if held not in FIELDS and held != BYTES:
            return word if held is None else _number(word, held)
    raise ModelFileError(
        f"it is damaged, or cut short: at character {tokens.at} there is no {held or 'value'}"
    )


def _number(word: str, held: str) -> object:
    if held in (FLOAT, DOUBLE):
        return np.array(
            [word.rstrip("fF") if "inf" not in word.lower() else word],
            dtype=np.float32 if held == FLOAT else np.float64,
        )
    constant = {"true": 1, "false": 0, **TYPES}.get(word)
    if constant is not None:
        return constant
    # Names of data types that no weights have, and other names.
    return -1 if word[:1].isalpha() else int(word, 0)


def _bytes(text: str) -> bytes:
    """The value of a quoted text."""
    if "\\" not in text:
        return text.encode()
    parts, at = [], 0
    for found in _ESCAPE.finditer(text):
        octal, hexadecimal, other = found.groups()
        parts.append(text[at : found.start()].encode())
        if octal or hexadecimal:
            parts.append(bytes([int(octal, 8) & 255 if octal else int(hexadecimal, 16)]))
        else:
            parts.append(bytes([_LETTERS[other]]) if other in _LETTERS else other.encode())
        at = found.end()
    parts.append(text[at:].encode())
    return b"".join(parts)
