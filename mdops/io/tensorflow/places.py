"""The place of a descriptor in a graph: the operation of its environment matrix, and its data."""

import dataclasses
import re
from typing import Any

import numpy as np

from mdops.errors import ModelFileError
from mdops.io.tensorflow.graph import Graph, Node
from mdops.io.tensorflow.nets import Layers, Tree, layers_by_name
from mdops.models.se_e2_a import NO_CUTOFF

RADIAL = ("DescrptSeR", "ProdEnvMatR")
ANGULAR = ("DescrptSeA", "DescrptNorot", "ProdEnvMatA")
MIXED = ("ProdEnvMatAMix",)
CLUSTERS = ("DescrptSeAMask",)  # with all pairs, without a cutoff, a cell or statistics
LOCAL = ("Descrpt",)  # in local frames of the atoms, without a switch
ENVIRONMENT = (*RADIAL, *ANGULAR, *MIXED, *CLUSTERS, *LOCAL)
_LONGEST = 1000.0  # cutoff, A
_MOST_ATOMS = 10_000  # of a cluster with all pairs
_AVERAGE, _DEVIATION = 5, 6  # the numbers of these inputs of the operations


@dataclasses.dataclass
class Part:
    """A descriptor, or a part of a hybrid.

    Attributes:
        node: its tree.
        width: the number of an atom's features, without its type's embedding.
        scale: a factor of the features.
        mixed: whether neighbours of all types share its places.
    """

    node: Tree
    width: int
    scale: float = 1.0
    mixed: bool = False


@dataclasses.dataclass
class Types:
    """The embedding of a model's types.

    Attributes:
        layers: of its net, whose input is the type as a one-hot vector.
        values: (ntypes, d), the outputs of the net.
    """

    layers: Layers
    values: np.ndarray


@dataclasses.dataclass
class Place:
    """An operation that makes an environment matrix, and what is known of the descriptor on top of it.

    Attributes:
        suffix: the end of the names of its scopes, such as "_1" for a hybrid's second part.
        stated: the descriptor's section of the training input; empty where there is none.
        type_map.
        types: the embedding of the types; None where the model has none.
        width: the number of its features that the fitting takes, if the graph tells it.
    """

    graph: Graph
    operation: Node
    suffix: str
    stated: Tree
    type_map: list[str]
    types: Types | None
    width: int | None

    @property
    def ntypes(self) -> int:
        return len(self.type_map)

    def environment(self, sel_name: str) -> Tree:
        """The keys that descriptors have in common; `sel_name` is the operation's attribute with sel."""
        if self.operation.op in CLUSTERS:
            sel = self.stated.get("sel")
            if not isinstance(sel, list) or not all(type(n) is int for n in sel):
                raise ModelFileError("the training input in it does not say how many atoms there are (sel)")
            self._check_sel(sel)
            if len(sel) != self.ntypes or sum(sel) > _MOST_ATOMS:
                raise ModelFileError(f"the training input in it has an impossible sel, {sel[:10]}")
            zero = np.zeros((self.ntypes, sum(sel), 4))
            return self._environment(NO_CUTOFF, NO_CUTOFF - 1, sel, zero, zero + 1)
        operation, radial = self.operation, sel_name == "sel"
        names = ("rcut", "rcut_smth") if radial else ("rcut_r", "rcut_r_smth")
        end, start = (np.float32(operation.attribute(name, "f")) for name in names)
        # The operation computes with float32 cutoffs and rounds their difference.
        smooth = float(start)
        rcut = smooth + float(end - start)
        if not 0 <= smooth < rcut < _LONGEST:
            raise ModelFileError(f"{operation.name} has impossible cutoffs, {smooth:g} and {rcut:g} A")
        sel = operation.attribute(sel_name, "list i")
        self._check_sel(sel)
        davg, dstd = (self._statistics(k, sum(sel), 1 if radial else 4) for k in (_AVERAGE, _DEVIATION))
        return self._environment(rcut, smooth, sel, davg, dstd)

    def local(self) -> Tree:
        """The keys of a descriptor in local frames of the atoms."""
        operation = self.operation
        rcut = float(np.float32(operation.attribute("rcut_r", "f")))
        if operation.attribute("rcut_a", "f") >= 0 or not 0 < rcut < _LONGEST:
            raise ModelFileError(
                f"{operation.name} has an impossible cutoff, {rcut:g} A, or a separate one for angles"
            )
        sel = {name: operation.attribute(name, "list i") for name in ("sel_a", "sel_r", "axis_rule")}
        for name in ("sel_a", "sel_r"):
            if len(sel[name]) != self.ntypes or not all(0 <= n <= _MOST_ATOMS for n in sel[name]):
                raise ModelFileError(f"{operation.name} has an impossible {name}, {sel[name][:10]}")
        width = 4 * sum(sel["sel_a"]) + sum(sel["sel_r"])
        davg, dstd = (self._statistics(k, width, 1)[..., 0] for k in (_AVERAGE, _DEVIATION))
        arrays = {"davg": davg, "dstd": dstd}
        return {"rcut": rcut, **sel, "type_map": self.type_map, "@variables": arrays}

    def _check_sel(self, sel: list[int]) -> None:
        if not sel or min(sel) < 0 or not sum(sel):
            raise ModelFileError(f"{self.operation.name} has an impossible sel, {sel[:10]}")

    def _environment(
        self, rcut: float, smooth: float, sel: list[int], davg: np.ndarray, dstd: np.ndarray
    ) -> Tree:
        return {
            "rcut": rcut,
            "rcut_smth": smooth,
            "sel": sel,
            "trainable": True,
            "exclude_types": self.excluded(),
            "env_protection": 0.0,
            "set_davg_zero": bool(self.stated.get("set_davg_zero", not davg.any())),
            "env_mat": {"rcut": rcut, "rcut_smth": smooth, "protection": 0.0, "use_exp_switch": False},
            "type_map": self.type_map,
            "@variables": {"davg": davg, "dstd": dstd},
        }

    def _statistics(self, which: int, slots: int, columns: int) -> np.ndarray:
        if len(self.operation.inputs) <= which:
            raise ModelFileError(f"{self.operation.name} lacks inputs")
        values = self.graph.value(self.operation.inputs[which])
        if values.size != self.ntypes * slots * columns:
            raise ModelFileError(
                f"{self.operation.inputs[which]} has {values.size} numbers, expected {self.ntypes} x {slots} x "
                f"{columns}"
            )
        return values.reshape(self.ntypes, slots, columns)

    def excluded(self) -> list[list[int]]:
        """The excluded pairs of types in the training input."""
        pairs = self.stated.get("exclude_types") or []
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list) and len(pair) == 2 and all(t in range(self.ntypes) for t in pair)
            for pair in pairs
        ):
            raise ModelFileError(f"the training input in it has impossible exclude_types, {pairs!r:.80}")
        return [list(pair) for pair in pairs]

    def nets(self, types: int, extra: str = "") -> dict[tuple[str, ...], Layers]:
        """The embedding nets with this number of types in the names of their constants, by (centre, *types)."""
        numbers = "".join(rf"_(?P<net_{k}>\d+)" for k in range(1, types + 1))
        scope = rf"(?:filter|DS_layer)_type_(?P<net_0>all|\d+){re.escape(self.suffix)}/"
        pattern = scope + r"(?P<kind>matrix|bias|idt)_(?P<layer>\d+)" + numbers + extra
        return layers_by_name(self.graph, pattern, lambda match: int(match["layer"]) - 1)

    def axis(self, channels: int) -> int:
        """The number of columns that multiply the moments (axis_neuron)."""
        names = rf"(?:filter|DS_layer)_type_(?:all|\d+){re.escape(self.suffix)}/Slice(?:_\d+)?/size"
        found = {
            int(value[2])
            for _, value in self.graph.constants(names)
            if value.shape == (3,) and value[0] == value[1] == -1 and value[2] > 0
        }
        stated = self.stated.get("axis_neuron", self.stated.get("n_axis_neuron"))
        if len(found) == 1:
            axis: Any = found.pop()
        elif stated is not None:
            axis = stated
        elif self.width is not None:
            axis = self.width // channels
        else:
            raise ModelFileError("the descriptor's axis_neuron is not in the graph")
        if type(axis) is not int or not 0 < axis <= channels:
            raise ModelFileError(
                f"the descriptor has an impossible axis_neuron, {axis!r:.40}, for {channels} columns"
            )
        return axis

    def scale(self, sel: list[int]) -> float:
        """The square of the ratio of the graph's moments to moments divided by the sum of sel: a graph may keep the
        divisor from before a change of its sel."""
        original = self.graph.optional(f"descrpt_attr{self.suffix}/original_sel")
        places = int(np.sum(original)) if original is not None else sum(sel)
        if places <= 0:
            raise ModelFileError(f"descrpt_attr{self.suffix}/original_sel has {places} places")
        return (sum(sel) / places) ** 2
