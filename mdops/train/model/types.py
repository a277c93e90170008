"""Reduces a model of many elements to some of them: for fine-tuning, like DeePMD-kit's `change_type_map`."""

from collections.abc import Sequence

from mdops.models import model_of_tree
from mdops.potential import Potential


def with_elements(potential: Potential, elements: Sequence[str]) -> Potential:
    """The model for only these elements, in this order, with the same energies for systems of them.

    This needs weights that serve all types (`mixed_types`); other models are returned unchanged, and so are models
    made of models, whose parts have their own type maps.

    Raises:
        UnsupportedModelError: a part of a hybrid has weights of its own for each type, or the first layer of the type
            embedding adds its input and is not linear.
    """
    model = potential.model
    known = list(model.type_map)
    if known == list(elements) or not model.mixed_types or len(model.parts) > 1:
        return potential
    tree = model.tree_of_types(model.to_tree(), [known.index(element) for element in elements], elements)
    found = Potential(model_of_tree(tree, potential.dtype), overflow=potential.overflow)
    found.source = potential.source
    return found
