"""From JSON to dataclasses: every key checked by name and type, errors by path."""

import dataclasses
import difflib
import json
import os
import types
import typing
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mdops.errors import ConfigError

T = TypeVar("T")


def key(
    default: Any = dataclasses.MISSING,
    doc: str = "",
    *,
    unit: str = "",
    alias: Sequence[str] = (),
    choices: Sequence[Any] = (),
    low: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """A field of a section.

    Args:
        default: the key must be given without one. Lists are copied for each section.
        doc, unit: for the documentation.
        alias: other names of the key.
        choices: the only values there are.
        low: the smallest value. above, below: values must be larger, smaller than these. Those of a list, too.
    """
    bounds = {"low": low, "above": above, "below": below}
    metadata = {"doc": doc, "unit": unit, "alias": tuple(alias), "choices": tuple(choices), **bounds}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(kind: type, doc: str = "", optional: bool = False) -> Any:
    """A field that is a section of its own; None where it may be absent, else its defaults."""
    metadata = {"doc": doc, "unit": "", "alias": (), "choices": ()}
    if optional:
        return dataclasses.field(default=None, metadata=metadata)
    required = any(_required(f) for f in dataclasses.fields(kind))
    if required:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default_factory=kind, metadata=metadata)


def _required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def read_json(path: str | os.PathLike[str]) -> Any:
    """The tree of a JSON file. Raises ConfigError where it is none, holds NaN, or gives a key twice."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no text, and so no JSON") from None
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A section, of which Python would keep the last of two equal keys without a word. Comments may be many."""
    names = [name for name, _ in pairs if not name.startswith("_")]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"the key {twice[0]!r} is given twice in one section")
    return dict(pairs)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")


def parse(kind: type[T], node: Any, path: str = "") -> T:
    """The section `kind` of a tree of JSON.

    Keys that begin with "_" are comments. A class may say three things of keys of DeePMD-kit besides its fields:
    IGNORED names those that change neither results nor files; UNUSED has those that would and do not here, with the
    values that ask for nothing: any other value is warned of; NEUTRAL has those that are refused at any value but one.
    null asks for nothing, and so does a section with `"enable": false`.

    Raises:
        ConfigError: a key that is unknown (the nearest valid one is named), absent, of another type or out of
            range; the message begins with its path.
    """
    if not isinstance(node, Mapping):
        raise ConfigError(f"{path or 'the input'}: is {_kind(node)}, expected a section in braces")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    names = {alias: name for name, f in fields.items() for alias in (name, *f.metadata["alias"])}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    # The type goes first: with another one, other keys are right.
    for keyword in sorted(node, key=lambda name: name != "type"):
        place = f"{path}.{keyword}" if path else str(keyword)
        if str(keyword).startswith("_") or keyword in getattr(kind, "IGNORED", ()):
            continue
        if keyword in getattr(kind, "UNUSED", {}):
            _warn_unused(node[keyword], kind.UNUSED[keyword], place)  # type: ignore[attr-defined]
            continue
        if keyword in getattr(kind, "NEUTRAL", {}):
            _require_neutral(node[keyword], kind.NEUTRAL[keyword], place)  # type: ignore[attr-defined]
            continue
        name = names.get(keyword)
        if name is None:
            nearest = difflib.get_close_matches(str(keyword), names, 1, 0.0)[0]
            raise ConfigError(f"{place}: there is no such key; the nearest is {nearest!r}")
        if name in values:
            raise ConfigError(f"{place}: is given twice, under several names of {name!r}")
        values[name] = _value(node[keyword], hints[name], place)
        _check_range(values[name], fields[name].metadata, place)
    for name, field in fields.items():
        if name not in values and _required(field):
            raise ConfigError(f"{path + '.' if path else ''}{name}: is missing")
    return kind(**values)


def _require_neutral(value: Any, neutral: Any, place: str) -> None:
    if value != neutral and not _is_off(value):
        raise ConfigError(f"{place}: is {value!r}; this is not supported, only {neutral!r} is")


def _warn_unused(value: Any, neutral: Sequence[Any], place: str) -> None:
    if value not in neutral and not _is_off(value):
        shown = " or ".join(json.dumps(v) for v in neutral) or "null"
        warnings.warn(
            f"{place}: is {json.dumps(value)}, which has no effect: mdops does not do this (no warning at {shown})",
            stacklevel=2,
        )


def _is_off(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and value.get("enable") is False)


def _check_range(value: Any, metadata: Mapping[str, Any], place: str) -> None:
    if metadata["choices"] and value not in metadata["choices"]:
        raise ConfigError(f"{place}: is {value!r}, expected {' or '.join(map(repr, metadata['choices']))}")
    low, above, below = (metadata.get(name) for name in ("low", "above", "below"))
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, int | float):
            continue
        if low is not None and not item >= low:
            raise ConfigError(f"{place}: is {value!r}, expected {low:g} or more")
        if above is not None and not item > above:
            raise ConfigError(f"{place}: is {value!r}, expected more than {above:g}")
        if below is not None and not item < below:
            raise ConfigError(f"{place}: is {value!r}, expected less than {below:g}")


def _value(value: Any, hint: Any, place: str) -> Any:
    """The value as what its type hint says; whole numbers become floats where these are meant."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        if dataclasses.is_dataclass(option) and value is not None:
            return parse(typing.cast(type, option), value, place)
        if typing.get_origin(option) is list and isinstance(value, list | tuple):
            (item,) = typing.get_args(option)
            return [_value(v, item, f"{place}[{i}]") for i, v in enumerate(value)]
        if option is float and type(value) in (int, float):
            return float(value)
        if option in (int, str, bool, dict, types.NoneType) and type(value) is option:
            return value
    raise ConfigError(f"{place}: is {_kind(value)}, expected {type_name(hint)}")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


_NAMES = {  # one, and several
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    bool: ("true or false", "true or false"),
    types.NoneType: ("null", "null"),
}


def type_name(hint: Any, several: bool = False) -> str:
    """A type hint in words: "a number, or a list of numbers"."""
    if typing.get_origin(hint) is list:
        of = type_name(typing.get_args(hint)[0], several=True)
        return f"lists of {of}" if several else f"a list of {of}"
    if not _is_union(hint):
        return _NAMES.get(hint, ("a section in braces", "sections in braces"))[several]
    options = typing.get_args(hint)
    plain = [type_name(option, several) for option in options if typing.get_origin(option) is not list]
    lists = [type_name(option, several) for option in options if typing.get_origin(option) is list]
    parts = [*lists, "null"] if plain == ["null"] else [" or ".join(plain), *lists]
    return ", or ".join(parts)


def _kind(value: Any) -> str:
    return f"{value!r}" if not isinstance(value, Mapping | list) else f"a {type(value).__name__}"


@dataclasses.dataclass(frozen=True)
class KeyHelp:
    """What there is to say about a key: path, type, unit, default (as JSON would have it) and meaning."""

    path: str
    type: str
    unit: str
    default: str
    doc: str


def describe_keys(kind: type, path: str = "") -> list[KeyHelp]:
    """Every key of a section and of the sections in it, in their order."""
    hints, result = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        place = f"{path}.{field.name}" if path else field.name
        inner = [
            o for o in (hints[field.name], *typing.get_args(hints[field.name])) if dataclasses.is_dataclass(o)
        ]
        if inner:
            result += describe_keys(typing.cast(type, inner[0]), place)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        text = "required" if default is dataclasses.MISSING else _json(default)
        words = type_name(hints[field.name])
        if field.metadata["choices"]:
            words = ", ".join(_json(choice) for choice in field.metadata["choices"])
        result.append(KeyHelp(place, words, field.metadata["unit"], text, field.metadata["doc"]))
    return result


def _json(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)
