"""Kinds that DeePMD-kit has and mdops has not: what each is, and what comes nearest to it."""

_TYPE_EMBEDDING = "is of DeePMD-kit's TensorFlow code alone; the nearest is se_atten_v2 with attn_layer 0"

ABSENT: dict[str, dict[str, str]] = {
    "descriptor": {
        "loc_frame": "has energies that jump where neighbours change places; se_e2_a takes the same data and is smooth",
        **dict.fromkeys(("se_a_tpe", "se_a_ebd", "se_a_tpe_v2", "se_a_ebd_v2"), _TYPE_EMBEDDING),
    },
    "fitting": {},
    "model": {
        "spin": "has magnetic moments; the nearest are types of their own for atoms of different moments",
    },
}


def nearest(sort: str, name: str) -> str:
    """What to say of a kind that is not supported, in parentheses; empty where nothing is known of it."""
    found = ABSENT[sort].get(name.lower())
    return f" ({name} {found})" if found else ""
