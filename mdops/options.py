"""Options as dataclasses, written once: keys of training inputs and of model files, checked by name and type.

A field made by `key` defines an option: its default, meaning, unit and range (for training inputs and their
documentation), where its key may occur, what its absence in a model file means, and how it is compared between two
models. A field made by `section` has options of its own. A field made by `variant` has the options of the kind that its
`type` names, and a field made by `variants` is a list of these.
"""

import copy
import dataclasses
import difflib
import json
import math
import os
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import yaml

from mdops.errors import ConfigError

__all__ = ["PRECISIONS", "Options", "key", "saved_precision", "section", "variant", "variants"]

MORE_KINDS = (
    "; --kinds FILE, or the environment variable MDOPS_KINDS, names a Python file with your own types"
)

_FLOAT32 = 2e-7  # relative
T = TypeVar("T")
Where = Literal["both", "input", "file"]
Of = Literal["model", "types", "pairs", "set", "sum", "training"]
# The largest numbers of neighbours that an atom has within a cutoff (A): of each type, and of all types together.
Most = Callable[[float], tuple[Sequence[int], int]]
Kinds = Callable[[], Mapping[str, type]]  # the options of each kind, under all of its names


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
    where: Where = "both",
    implied: Any = dataclasses.MISSING,
    absent: Any = dataclasses.MISSING,
    saved: Any = None,
    of: Of = "model",
) -> Any:
    """A field of a section.

    Args:
        default: without one, the key is required. Lists are copied for each section.
        doc, unit: for the documentation.
        alias: other names of the key.
        choices: the only valid values.
        low: the smallest value. above, below: values must be larger, smaller than these. This also applies to each
            value of a list.
        where: the key occurs only in the "input" of a training, only in the "file" of a model, or in both.
        implied: the meaning of the key's absence in the definition of a model in a PyTorch file (DeePMD-kit's classes
            have other defaults than its inputs), if it is not the default; `...`: the key is required there.
        absent: the meaning of its absence in a model file, if it is not the default; `...`: the key is required there.
        saved: the type hint of the value in a model file, if it differs from the field's.
        of: what must be equal for the option to be the same in two models: "model" the value, "types" a value for each
            type, "pairs" pairs of types, "set" types, "sum" the sum of numbers. "training" options say how a model is
            made, and are not compared.
    """
    bounds = {"low": low, "above": above, "below": below}
    metadata = {"doc": doc, "unit": unit, "alias": tuple(alias), "choices": tuple(choices), **bounds}
    metadata |= {"where": where, "implied": default if implied is dataclasses.MISSING else implied, "of": of}
    metadata |= {"absent": default if absent is dataclasses.MISSING else absent, "saved": saved}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(kind: type, doc: str = "", optional: bool = False) -> Any:
    """A field that is a section; if it is absent: None if `optional`, otherwise its defaults."""
    metadata = {"doc": doc, "unit": "", "alias": (), "choices": ()}
    if optional:
        return dataclasses.field(default=None, metadata=metadata)
    required = any(_required(f) for f in dataclasses.fields(kind))
    if required:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default_factory=kind, metadata=metadata)


def variant(
    kinds: Kinds,
    default: str,
    choose: Callable[[Mapping[str, Any], str], str] | None = None,
    absent: Callable[[str], str] | None = None,
) -> Any:
    """A field that is a section of one of several kinds. Its key `type` names the kind; without it, it is `default`.

    `choose` returns the kind's name from the section and its `type`, if other keys determine it, too. `absent` returns
    the text of an error about an unknown kind."""
    metadata = {"doc": "", "unit": "", "alias": (), "choices": (), "kinds": kinds, "kind": default}
    return dataclasses.field(metadata={**metadata, "choose": choose, "absent": absent})


def variants(kinds: Kinds, default: str, doc: str, absent: Callable[[str], str] | None = None) -> Any:
    """A field that is a list of sections as in `variant`."""
    metadata = {"doc": doc, "unit": "", "alias": (), "choices": (), "kinds": kinds, "kind": default}
    return dataclasses.field(metadata={**metadata, "absent": absent})


def _required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    has_kinds = "kinds" in field.metadata
    return field.default is missing and field.default_factory is missing and not has_kinds


class Options:
    """Base of the options of a kind; a dataclass of fields by `key`, `section` and `variant`.

    A class may list keys of DeePMD-kit that are not its fields. IGNORED: keys that change neither results nor files.
    UNUSED: keys that have an effect in DeePMD-kit but not here, with the values that ask for nothing; other values give
    a warning. NEUTRAL: keys with the only value that is allowed. A key is off if it is null or a section with
    `"enable": false`. ADVICE: for keys that are not supported, what to do instead. Of NEUTRAL and ADVICE of a base
    class, those do not count that are fields.
    """

    KIND: ClassVar[str]  # the kind's name in model files
    # The kind's names as `type` in inputs; documentation uses the first. Only KIND if a class does not set them.
    NAMES: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "KIND" in vars(cls) and "NAMES" not in vars(cls):
            cls.NAMES = (cls.KIND,)

    @classmethod
    def keys(cls, *where: str) -> list[dataclasses.Field[Any]]:
        """The fields by `key` that occur in one of these places, or in both."""
        fields = [f for f in dataclasses.fields(cls) if "where" in f.metadata]  # type: ignore[arg-type]
        return [f for f in fields if f.metadata["where"] in ("both", *where)]

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], **others: Any) -> Self:
        """The options of a serialised node; `others` are fields that the node lacks or names differently."""
        values = {}
        for field in cls.keys("file"):
            value = tree.get(field.name)
            if value is not None:
                values[field.name] = list(value) if isinstance(value, tuple) else value
        return cls(**{**values, **others})

    def to_tree(self) -> dict[str, Any]:
        """The keys of a serialised node."""
        tree = {field.name: copy.deepcopy(getattr(self, field.name)) for field in self.keys("file")}
        if "precision" in tree:
            tree["precision"] = saved_precision(tree["precision"])
        return tree

    @classmethod
    def completed(cls, node: Mapping[str, Any], place: str) -> Mapping[str, Any]:
        """A section of an input; keys that apply to the sections in it are added there.

        Raises ConfigError, naming the place."""
        return node

    def check(self, place: str, type_map: Sequence[str]) -> None:
        """Raises ConfigError, naming the place, if options contradict each other."""

    def requirement(self, place: str) -> Callable[[bool, str, str], None]:
        """A function that raises ConfigError unless a condition holds; the message has the option's name and what is
        expected."""

        def require(holds: bool, name: str, wanted: str) -> None:
            if not holds:
                raise ConfigError(f"{place}.{name}: is {getattr(self, name)!r}, expected {wanted}")

        return require

    @property
    def cutoff(self) -> float:
        """The distance within which the part uses neighbours, A; 0 for a fitting."""
        return 0.0

    def resolve_sel(self, most: Most, place: str) -> Self:
        """These options with every automatic `sel` replaced, based on the most neighbours of atoms in the data."""
        return self


def from_definition(kind: type[Options], params: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a serialised node from the definition in a PyTorch file. Raises ConfigError if one is missing."""
    found = {}
    for field in kind.keys("file"):
        value = params.get(field.name, field.metadata["implied"])
        if value is ...:
            raise ConfigError(f"the model's definition lacks {field.name}")
        if value is dataclasses.MISSING:
            factory = field.default_factory
            if not callable(factory):
                raise ConfigError(f"the model's definition lacks {field.name}")
            value = factory()
        found[field.name] = value
    if "precision" in found:
        found["precision"] = saved_precision(str(found["precision"]))
    return found


_MOST = 2**63  # limit of whole numbers
_FEW = 3  # kinds that an error names
PRECISIONS = ("default", "float32", "float64", "single", "double")  # of inputs


def check_pairs(pairs: Sequence[Sequence[int]], ntypes: int, place: str) -> None:
    """Raises ConfigError for anything but a pair of types."""
    for pair in pairs:
        if len(pair) != 2 or not are_types(pair, ntypes):
            raise ConfigError(f"{place}: has {pair}, expected pairs of types, 0 .. {ntypes - 1}")


def are_types(kinds: Sequence[int], ntypes: int) -> bool:
    return all(0 <= kind < ntypes for kind in kinds)


def saved_precision(precision: str) -> str:
    """The dtype that the value of a key `precision` means."""
    names = {"default": "float64", "double": "float64", "single": "float32", "half": "float16"}
    return names.get(precision, precision)


def differences(
    own: Options,
    other: Options,
    place: str,
    types_own: Sequence[str],
    types_other: Sequence[str],
) -> Iterator[tuple[str, Any, Any]]:
    """(key, own value, other value) of the options that make two models different, for the elements of `own`.

    Values for types are compared by element. An automatic `sel` and the default precision are equal to any other
    value.
    """
    if own.KIND != other.KIND:
        yield f"{place}.type", own.KIND, other.KIND
        return
    for field in dataclasses.fields(own):  # type: ignore[arg-type]
        a, b, name = getattr(own, field.name), getattr(other, field.name), f"{place}.{field.name}"
        if isinstance(a, Options):
            yield from differences(a, b, name, types_own, types_other)
        elif isinstance(a, list) and a and isinstance(a[0], Options):
            if len(a) != len(b):
                yield name, f"of {len(a)} parts", f"of {len(b)} parts"
            else:
                for i, (x, y) in enumerate(zip(a, b, strict=True)):
                    yield from differences(x, y, f"{name}[{i}]", types_own, types_other)
        elif "of" in field.metadata and field.metadata["of"] != "training":
            if (field.name.endswith("sel") and isinstance(a, str)) or (
                field.name == "precision" and a == "default"
            ):
                continue
            form = _FORMS[field.metadata["of"]]
            x, y = form(a, types_own, types_own), form(b, types_other, types_own)
            if not _alike(x, y):
                yield name, x, y


_HOW = ("trainable", "trainable_ln")


def take_trainable(own: Options, given: Options) -> None:
    """Sets which weights of the parts of `own` are trained, as the same parts of `given` say."""
    for field in dataclasses.fields(own):  # type: ignore[arg-type]
        a, b = getattr(own, field.name), getattr(given, field.name, None)
        if field.name in _HOW and hasattr(given, field.name):
            setattr(own, field.name, copy.copy(b))
        parts = zip(a, b, strict=False) if isinstance(a, list) and isinstance(b, list) else [(a, b)]
        for x, y in parts:
            if isinstance(x, Options) and isinstance(y, Options):
                take_trainable(x, y)


def _alike(x: Any, y: Any) -> bool:
    """Whether two values are the same; numbers are compared in float32, because some files have lengths in float32."""
    if isinstance(x, float) and isinstance(y, int | float):
        return abs(x - y) <= _FLOAT32 * abs(x)
    return bool(x == y)


def _plain(value: Any, types: Sequence[str], elements: Sequence[str]) -> Any:
    """The value, or zero if it is absent or off: DeePMD-kit writes the same option as None, False or 0."""
    if isinstance(value, str):
        return saved_precision(value)
    return list(value) if isinstance(value, list | tuple) else value or 0


def _by_type(values: Any, types: Sequence[str], elements: Sequence[str]) -> Any:
    """The values of types, by element; a single number is the value of all."""
    if isinstance(values, int | float):
        return {element: values for element in types if element in elements}
    if not isinstance(values, list):
        return values
    pairs = zip(types, values, strict=False)
    return {element: value for element, value in pairs if value is not None and element in elements}


def _pairs(pairs: Any, types: Sequence[str], elements: Sequence[str]) -> list[tuple[str, ...]]:
    """Pairs of types as pairs of elements, each once."""
    named = {tuple(sorted(types[t] for t in pair)) for pair in pairs or []}
    return sorted(pair for pair in named if set(pair) <= set(elements))


def _elements(kinds: Any, types: Sequence[str], elements: Sequence[str]) -> list[str]:
    return sorted({types[t] for t in kinds or []} & set(elements))


def _sum(values: Any, types: Sequence[str], elements: Sequence[str]) -> Any:
    return sum(values) if isinstance(values, list) else values


_FORMS = {"model": _plain, "types": _by_type, "pairs": _pairs, "set": _elements, "sum": _sum}


YAML = (".yaml", ".yml")  # ends of names
_TEXT, _MERGED, _NUMBER = (f"tag:yaml.org,2002:{name}" for name in ("str", "merge", "float"))


class _Loader(yaml.SafeLoader):
    """YAML with JSON's numbers (1e-5 is text in YAML 1.1), where keys are texts, and none is given twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        known: set[str] = set()
        for name, _ in node.value:
            problem = None
            if name.tag not in (_TEXT, _MERGED):
                problem = "a key is not text: write it in quotes"
            elif name.value in known and not name.value.startswith("_"):
                problem = f"the key {name.value!r} is given twice in one section"
            if problem:
                raise yaml.composer.ComposerError(None, None, problem, name.start_mark)
            known.add(name.value)
        return node


_Loader.add_implicit_resolver(_NUMBER, re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))


def read_tree(path: str | os.PathLike[str]) -> Any:
    """The tree of a file: of YAML if its name ends so, else of JSON. Raises ConfigError if the file is neither, gives a
    key twice, has a key that is not text, or, of JSON, contains NaN."""
    name = "YAML" if Path(path).suffix in YAML else "JSON"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not text in UTF-8, as {name} is") from None
    try:
        if name == "YAML":
            return yaml.load(text, _Loader)
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not {name}: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A section. Raises ValueError for equal keys, of which Python would keep the last. Comments may repeat."""
    names = [name for name, _ in pairs if not name.startswith("_")]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"the key {twice[0]!r} is given twice in one section")
    return dict(pairs)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number in JSON")


def parse(kind: type[T], node: Any, path: str = "", others: Iterable[type[Options]] = ()) -> T:
    """The section `kind` of a tree of JSON; `others` are the kinds that it could be. Keys that begin with "_" are
    comments.

    Raises:
        ConfigError: a key that is unknown (the nearest valid one is named), absent, of another type or out of
            range; the message begins with its path.
    """
    if not isinstance(node, Mapping):
        raise ConfigError(f"{path or 'the input'}: is {_kind(node)}, expected a section in braces")
    if issubclass(kind, Options):
        node = kind.completed(node, path)
    fields = _keys_of(kind)
    names = {alias: name for name, f in fields.items() for alias in (name, *f.metadata["alias"])}
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    neutral, advice = (
        {name: value for name, value in getattr(kind, listed, {}).items() if name not in names}
        for listed in ("NEUTRAL", "ADVICE")
    )
    # First `type`, which decides which keys are valid. Then keys with advice: they show what the section is for.
    for keyword in sorted(node, key=lambda name: (name != "type", name not in advice)):
        place = f"{path}.{keyword}" if path else str(keyword)
        if str(keyword).startswith("_") or keyword in getattr(kind, "IGNORED", ()):
            continue
        if keyword in neutral:
            _require_neutral(node[keyword], neutral[keyword], place, advice.get(keyword))
            continue
        if keyword in getattr(kind, "UNUSED", {}):
            _warn_unused(node[keyword], kind.UNUSED[keyword], place)  # type: ignore[attr-defined]
            continue
        if keyword == "type" and issubclass(kind, Options):
            continue  # it already selected this kind
        name = names.get(keyword)
        if name is None:
            if keyword in advice:
                raise ConfigError(f"{place}: is not supported: {advice[keyword]}")
            for section in (name for name, hint in hints.items() if _has_key(hint, str(keyword))):
                raise ConfigError(f"{place}: there is no such key here; it belongs in {section!r}")
            having = [other.NAMES[0] for other in dict.fromkeys(others) if keyword in _keys_of(other)]
            if 0 < len(having) <= _FEW:
                where = " or ".join(having)
                raise ConfigError(
                    f"{place}: there is no such key here; it belongs in a section of type {where}"
                )
            own = [known for known in names if names[known] == known] or names  # not aliases
            nearest = difflib.get_close_matches(str(keyword), own, 1, 0.0)[0]
            raise ConfigError(f"{place}: there is no such key; the nearest is {nearest!r}")
        if name in values:
            raise ConfigError(f"{place}: is given twice, under several names of {name!r}")
        values[name] = _field_value(node[keyword], fields[name], hints[name], place)
        _check_range(values[name], fields[name].metadata, place)
    for name, field in fields.items():
        place = f"{path + '.' if path else ''}{name}"
        if name not in values and "kinds" in field.metadata and typing.get_origin(hints[name]) is not list:
            values[name] = _field_value({}, field, hints[name], place)
        elif name not in values and (_required(field) or "kinds" in field.metadata):
            raise ConfigError(f"{place}: is missing")
    return kind(**values)


def _keys_of(kind: type) -> dict[str, dataclasses.Field[Any]]:
    """The fields that are keys of an input."""
    return {f.name: f for f in dataclasses.fields(kind) if f.metadata.get("where") != "file"}


def _has_key(hint: Any, keyword: str) -> bool:
    """Whether a field with this type hint is a section that has the key."""
    return any(
        dataclasses.is_dataclass(part) and keyword in {field.name for field in dataclasses.fields(part)}
        for part in (hint, *typing.get_args(hint))
    )


def _field_value(value: Any, field: dataclasses.Field[Any], hint: Any, place: str) -> Any:
    """The value of a field: a key, a section, or one or several sections whose `type` names their kind."""
    if "kinds" not in field.metadata:
        return _value(value, hint, place)
    if typing.get_origin(hint) is not list:
        return _variant(value, field, place)
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{place}: is {_kind(value)}, expected a list of sections in braces")
    return [_variant(part, field, f"{place}[{i}]") for i, part in enumerate(value)]


def _variant(value: Any, field: dataclasses.Field[Any], place: str) -> Any:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{place}: is {_kind(value)}, expected a section in braces")
    kinds, name = field.metadata["kinds"](), value.get("type", field.metadata["kind"])
    if callable(field.metadata.get("choose")):
        name = field.metadata["choose"](value, name)
    if not isinstance(name, str) or name not in kinds:
        known = ", ".join(dict.fromkeys(kind.NAMES[0] for kind in kinds.values()))
        absent, why = field.metadata.get("absent"), ""
        if isinstance(name, str):
            close = difflib.get_close_matches(name, list(kinds), 1, 0.8)
            why = (absent(name) if absent else "") or (f" (the nearest is {close[0]!r})" if close else "")
        raise ConfigError(f"{place}.type: is {name!r}, expected one of {known}{why}{MORE_KINDS}")
    return parse(kinds[name], value, place, kinds.values())


def _require_neutral(value: Any, neutral: Any, place: str, advice: str | None) -> None:
    if value != neutral and not _is_off(value):
        more = f": {advice}" if advice else ""
        raise ConfigError(f"{place}: is {value!r}; this is not supported, only {neutral!r} is{more}")


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
    """The value, converted to its type hint: whole numbers become floats if the hint says so."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    for option in options:
        if dataclasses.is_dataclass(option) and value is not None:
            return parse(typing.cast(type, option), value, place)
        if typing.get_origin(option) is list and isinstance(value, list | tuple):
            (item,) = typing.get_args(option)
            return [_value(v, item, f"{place}[{i}]") for i, v in enumerate(value)]
        if option is float and type(value) in (int, float):
            return _finite(value, place)
        if option is int and type(value) is int and abs(value) >= _MOST:
            raise ConfigError(f"{place}: is not a whole number of 64 bits")
        if option in (int, str, bool, dict, types.NoneType) and type(value) is option:
            return value
    raise ConfigError(f"{place}: is {_kind(value)}, expected {type_name(hint)}")


def _finite(value: int | float, place: str) -> float:
    try:
        if math.isfinite(value):
            return float(value)
    except OverflowError:  # a whole number that is too large
        pass
    raise ConfigError(f"{place}: is not a finite number")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


_NAMES = {  # singular and plural
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
    """The documentation of a key: path, type, unit, default (as in JSON) and meaning."""

    path: str
    type: str
    unit: str
    default: str
    doc: str


def describe_keys(kind: type, path: str = "") -> list[KeyHelp]:
    """Every key of a section and of the sections in it, in order; a section of several kinds is one key."""
    hints, result = typing.get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        place = f"{path}.{field.name}" if path else field.name
        if field.metadata.get("where") == "file":
            continue
        if "kinds" in field.metadata:
            names = dict.fromkeys(k.NAMES[0] for k in field.metadata["kinds"]().values())
            several = typing.get_origin(hints[field.name]) is list
            default: Any = "required" if several else _json(field.metadata["kind"])
            words = f"{'sections' if several else 'a section'} of type {', '.join(map(_json, names))}"
            result.append(KeyHelp(f"{place}.type", words, "", default, field.metadata["doc"] or "its type"))
            continue
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
