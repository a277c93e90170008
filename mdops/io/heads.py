"""Files of several models: the heads of a multi-task training, by their names."""

from collections.abc import Mapping
from typing import Any

from mdops.errors import HeadError
from mdops.io.tree import mapping


def heads_of(params: Mapping[str, Any]) -> dict[str, list[str]]:
    """The heads of a definition with a `model_dict`, each with its aliases."""
    found = {}
    for name, branch in mapping(params["model_dict"], "model_dict").items():
        given = branch.get("model_branch_alias") if isinstance(branch, dict) else None
        found[name] = [alias for alias in given if isinstance(alias, str)] if isinstance(given, list) else []
    return found


def chosen_head(heads: Mapping[str, list[str]], head: str | None) -> str:
    """The full name of a head. Case matters only if several names differ in nothing else. Raises HeadError, which lists
    the heads."""
    if head is None:
        if len(heads) == 1:
            return next(iter(heads))
        raise HeadError(
            f"it holds {len(heads)} models, {_listed(heads)}: choose one, as head={next(iter(heads))!r}",
            list(heads),
        )
    names = [(own, name) for name, aliases in heads.items() for own in (name, *aliases)]
    same = [name for own, name in names if own == head]
    alike = {name for own, name in names if own.lower() == head.lower()}
    if same or len(alike) == 1:
        return (same or [*alike])[0]
    raise HeadError(f"it has no head {head!r}; it holds {_listed(heads)}", list(heads))


def require_head(source: Mapping[str, Any], head: str | None) -> None:
    """Raises HeadError if the file's one model is not the requested head."""
    own = source.get("head")
    names = [own, *source.get("head_aliases", [])] if isinstance(own, str) else []
    if head is not None and head.lower() not in [str(name).lower() for name in names]:
        what = f"that of the head {own}" if names else "not of a multi-task training"
        raise HeadError(f"it holds one model, {what}: there is no head {head!r}")


def _listed(heads: Mapping[str, list[str]]) -> str:
    also = {name: f" (also {', '.join(aliases)})" if aliases else "" for name, aliases in heads.items()}
    return "the heads " + ", ".join(f"{name}{more}" for name, more in also.items())
