"""A model of many elements as one of some of them: for fine-tuning, as DeePMD-kit's `change_type_map` does it."""

from collections.abc import Sequence

from mdops.models import model_of_tree
from mdops.potential import Potential


def with_elements(potential: Potential, elements: Sequence[str]) -> Potential:
    """The model of these elements alone, in this order, which has the same energies where there are no others.

    Only models whose weights serve all types can be that (`mixed_types`); others are returned as they are, and so are
    models that are made of models, whose parts have type maps of their own.

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
