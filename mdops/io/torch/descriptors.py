"""From a PyTorch state dict to the trees of descriptors."""

from mdops.errors import ConfigError, ModelFileError, UnsupportedModelError
from mdops.io.torch.state import State, Tree
from mdops.models import registry


def descriptor_tree(params: Tree, state: State, type_map: list[str]) -> Tree:
    """The node of a descriptor, by its kind (`Descriptor.tree_of_state`).

    Raises UnsupportedModelError for a kind that is not read, ModelFileError where definition and weights do not fit.
    """
    name, kinds = params.get("type", "se_e2_a"), registry.kinds("descriptor")
    if name not in kinds:
        known = ", ".join(dict.fromkeys(kind.Options.NAMES[0] for kind in kinds.values()))
        raise UnsupportedModelError(
            f"the descriptor {name} cannot be read from a PyTorch file (these can: {known})"
        )
    try:
        tree: Tree = kinds[name].tree_of_state(params, state, type_map)
    except ConfigError as error:
        raise ModelFileError(str(error)) from error
    return tree


def is_mixed(descriptor: Tree) -> bool:
    """Whether one fitting net serves all types on top of this descriptor's node."""
    if descriptor["type"] == "hybrid":
        return any(map(is_mixed, descriptor["list"]))
    return bool(registry.find("descriptor", descriptor["type"]).mixed)
