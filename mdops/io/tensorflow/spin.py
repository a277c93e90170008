"""Makes the tree of a model with magnetic moments from a graph with spins (`ener_spin`).

In graphs the types of virtual atoms follow those of atoms, and only the first elements have one. In the tree each
element has one; for elements without a spin there are no such atoms, and their sel is 0.
"""

from typing import Any

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow.graph import Graph
from mdops.io.tensorflow.nets import Tree
from mdops.models.spin import Spin

_SCOPE = "spin_attr"


def magnetic_elements(graph: Graph) -> int:
    """How many elements have a spin, the first ones; 0 in a model without spins."""
    count = graph.optional(f"{_SCOPE}/ntypes_spin")
    found = 0 if count is None or not count.size else int(count.reshape(-1)[0])
    if not 0 <= found < 1000:
        raise ModelFileError(f"it has an impossible number of elements with spins, {found}")
    return found


def with_spin(graph: Graph, tree: Tree, stated: Tree) -> Tree:
    """Turns the tree of a model with types for the virtual atoms of the first elements into one with magnetic moments.
    Other trees stay as they are. `stated` is the section of the training input, empty if there is none.

    Raises UnsupportedModelError for a model that is not of se_e2_a, ModelFileError for spins that do not fit its types.
    """
    magnetic = magnetic_elements(graph)
    if not magnetic:
        return tree
    descriptor, fitting = tree.get("descriptor", {}), tree.get("fitting", {})
    if descriptor.get("type") != "se_e2_a" or fitting.get("type") != "ener" or fitting["mixed_types"]:
        raise UnsupportedModelError(
            "a model with spins that is not of se_e2_a is not read from TensorFlow graphs"
        )
    n = len(tree["type_map"]) - magnetic
    spin, more = _spin(graph, magnetic, n, stated), n - magnetic
    types = [*tree["type_map"], *(f"{name}_spin" for name in tree["type_map"][magnetic:n])]
    placeholders = range(n + magnetic, 2 * n)
    absent = [[one, other] for one in placeholders for other in range(2 * n)]
    return {
        **tree,
        "type_map": types,
        "spin": spin.to_tree(),
        "atom_exclude_types": list(range(n, 2 * n)),
        "pair_exclude_types": absent,
        "@variables": _padded(tree["@variables"], more, 1, {"out_std": 1.0}),
        "descriptor": {
            **descriptor,
            "type_map": types,
            "sel": [*descriptor["sel"], *[0] * more],
            "exclude_types": [*descriptor["exclude_types"], *absent],
            "embeddings": _of_more_types(descriptor["embeddings"], more),
            "@variables": _padded(descriptor["@variables"], more, 0, {"dstd": 1.0}),
        },
        "fitting": {
            **fitting,
            "type_map": types,
            "ntypes": 2 * n,
            "exclude_types": list(range(n, 2 * n)),
            "atom_ener": [*fitting["atom_ener"], *[None] * more] if fitting["atom_ener"] else [],
            "nets": _of_more_types(fitting["nets"], more),
            "@variables": {
                **fitting["@variables"],
                "bias_atom_e": np.pad(fitting["@variables"]["bias_atom_e"], ((0, more), (0, 0))),
            },
        },
    }


def _spin(graph: Graph, magnetic: int, elements: int, stated: Tree) -> Spin:
    use = [t < magnetic for t in range(elements)]
    given = stated.get("spin")
    if magnetic > elements or (isinstance(given, dict) and given.get("use_spin", use) != use):
        raise ModelFileError(
            f"it has spins of the first {magnetic} of {elements} elements, but its training input has other spins"
        )
    lengths, norms = (graph.value(f"{_SCOPE}/{name}").reshape(-1) for name in ("virtual_len", "spin_norm"))
    if len(lengths) < magnetic or len(norms) < magnetic or not (norms[:magnetic] > 0).all():
        raise ModelFileError(
            f"its virtual_len {lengths.tolist()!r:.80} or spin_norm {norms.tolist()!r:.80} are wrong"
        )
    scales = (lengths[:magnetic] / norms[:magnetic]).tolist()
    return Spin(tuple(use), (*scales, *[0.0] * (elements - magnetic)))


def _padded(arrays: Tree, more: int, axis: int, values: dict[str, float]) -> Tree:
    """The arrays with `more` types added along the axis, which have these values, or 0."""

    def one(name: str, array: np.ndarray) -> np.ndarray:
        widths = [(0, more if k == axis else 0) for k in range(array.ndim)]
        return np.pad(array, widths, constant_values=values.get(name, 0.0))

    return {name: one(name, array) for name, array in arrays.items()}


def _of_more_types(nets: Tree, more: int) -> Tree:
    """The collection with `more` types added, whose nets have no effect."""
    n, some = nets["ntypes"], nets["networks"][0]
    new = n + more

    def net(place: int) -> Any:
        types = [place // new**k % new for k in range(nets["ndim"])]
        return nets["networks"][sum(t * n**k for k, t in enumerate(types))] if max(types) < n else some

    return {**nets, "ntypes": new, "networks": [net(place) for place in range(new ** nets["ndim"])]}
