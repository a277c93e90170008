"""The descriptor se_a_mask: se_e2_a of all pairs of a cluster, with some atoms masked."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mdops.errors import ConfigError
from mdops.models.contract import Tree
from mdops.models.neighborhood import Neighborhood
from mdops.models.registry import register
from mdops.models.se_e2_a import NO_CUTOFF, SeE2A, SeE2AOptions
from mdops.options import key


@dataclass(kw_only=True)
class SeAMaskOptions(SeE2AOptions):
    KIND = "se_a_mask"
    masks: ClassVar[bool] = True

    sel: list[int] = key(doc="number of atoms of each type, including masked ones", low=0, of="types")
    rcut: float = key(NO_CUTOFF, "no cutoff", unit="A", above=0, where="file")
    rcut_smth: float = key(NO_CUTOFF - 1, "no switch", unit="A", low=0, where="file")
    env_protection: float = key(0.0, "none", unit="A", low=0, where="file")
    set_davg_zero: bool = key(True, "there are no statistics", where="file")

    @classmethod
    def with_types(cls, section: Mapping[str, Any], width: int, place: str, kinds: Mapping[str, type]) -> Any:
        raise ConfigError(f"{place}.type: {cls.KIND} takes no embedding of types")


@register
class SeAMask(SeE2A):
    """se_e2_a without a cutoff and without statistics: R_j = (1/r, x/r^2, y/r^2, z/r^2) of every other atom.

    The atomic parameter `aparam` is a mask: atoms with 0 are no neighbours, and have none. They have the energy of
    an atom alone, and no force.
    """

    Options: ClassVar[type[SeE2AOptions]] = SeAMaskOptions
    NODE = SeE2A.NODE

    def learn_statistics(self, frames: Iterable[Neighborhood], absent: Sequence[Sequence[int]]) -> None:
        """It has none."""

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        of_files = [field.name for field in cls.Options.keys("file") if field.metadata["where"] == "file"]
        return {k: v for k, v in super().definition_of_tree(tree).items() if k not in of_files}

    @classmethod
    def file_of_tree(cls, tree: Tree) -> Tree:
        """Only DeePMD-kit's TensorFlow graphs have this kind; se_e2_a with this cutoff gives the same."""
        return {**tree, "type": SeE2AOptions.KIND}
