"""Kinds that DeePMD-kit has and mdops lacks: what each is, and the nearest one here."""

_TYPE_EMBEDDING = (
    "is of DeePMD-kit's TensorFlow code alone; the nearest is se_e2_a in a model with type_embedding"
)

ABSENT: dict[str, dict[str, str]] = {
    "descriptor": {
        **dict.fromkeys(("se_a_tpe", "se_a_ebd"), _TYPE_EMBEDDING),
    },
    "fitting": {},
    "model": {
        "spin": "has magnetic moments; the nearest are types of their own for atoms of different moments",
    },
}


def nearest(sort: str, name: str) -> str:
    """The note on an unsupported kind, in parentheses; empty if nothing is known of it."""
    found = ABSENT[sort].get(name.lower())
    return f" ({name} {found})" if found else ""
