"""A model of many elements as one of some of them: for fine-tuning, as DeePMD-kit's `change_type_map` does it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mdops.errors import UnsupportedModelError
from mdops.models import model_of_tree
from mdops.models.contract import Tree
from mdops.potential import Potential


def with_elements(potential: Potential, elements: Sequence[str]) -> Potential:
    """The model of these elements alone, in this order, which has the same energies where there are no others.

    Only models whose weights serve all types can be that (`mixed_types`); others are returned as they are, and so are
    models that are made of models, whose parts have type maps of their own.

    Raises:
        UnsupportedModelError: the first layer of the type embedding adds its input and is not linear.
    """
    model = potential.model
    known = list(model.type_map)
    if known == list(elements) or not model.mixed_types or len(model.parts) > 1:
        return potential
    tree = _narrowed(model.to_tree(), [known.index(element) for element in elements], list(elements))
    found = Potential(model_of_tree(tree, potential.dtype), overflow=potential.overflow)
    found.source = potential.source
    return found


def _narrowed(node: Any, index: list[int], elements: list[str]) -> Any:
    """A node of the tree for the types at these places."""
    if isinstance(node, list):
        return [_narrowed(item, index, elements) for item in node]
    if not isinstance(node, dict):
        return node
    tree: Tree = {key: _narrowed(value, index, elements) for key, value in node.items()}
    if tree.get("@class") == "TypeEmbedNet" and not tree["use_econf_tebd"]:
        tree["embedding"] = _of_types(tree["embedding"], index)
    place = {old: new for new, old in enumerate(index)}
    for key, value in tree.items():
        if key == "type_map":
            tree[key] = elements
        elif key == "ntypes":
            tree[key] = len(elements)
        elif key in ("exclude_types", "pair_exclude_types", "atom_exclude_types"):
            tree[key] = _renamed(value, place)
        elif key == "atom_ener" and value:
            tree[key] = [value[k] for k in index]
        elif key == "preset_out_bias" and value:
            tree[key] = {name: of_types and [of_types[k] for k in index] for name, of_types in value.items()}
        elif key in ("davg", "dstd", "bias_atom_e"):
            tree[key] = value[index]
        elif key in ("out_bias", "out_std"):
            tree[key] = value[:, index]
    return tree


def _renamed(types: Sequence[Any], place: dict[int, int]) -> list[Any]:
    """Types, or pairs of them, by their new numbers, without those that are gone."""
    found: list[Any] = []
    for one in types:
        if isinstance(one, int):
            found += [place[one]] if one in place else []
        elif all(t in place for t in one):
            found.append([place[t] for t in one])
    return found


def _of_types(net: Tree, index: list[int]) -> Tree:
    """The net of the type embedding, whose input marks the type, for these types."""
    first = dict(net["layers"][0])
    weight = np.array(first["@variables"]["w"])
    types, width = weight.shape

    def marks(n: int) -> np.ndarray | float:
        """What a layer that adds its input of n numbers adds for each type."""
        adds = first["resnet"] and width in (n, 2 * n)
        return np.tile(np.eye(n), width // n) if adds else 0.0

    before, after = marks(types), marks(len(index))
    if not np.isscalar(before) or not np.isscalar(after):
        if str(first["activation_function"]).lower() not in ("linear", "none"):
            raise UnsupportedModelError(
                "a type embedding that adds its input and is not linear cannot be one of fewer types"
            )
        weight = weight + before
    first["@variables"] = {**first["@variables"], "w": weight[index] - after}
    return {**net, "in_dim": len(index), "layers": [first, *net["layers"][1:]]}
