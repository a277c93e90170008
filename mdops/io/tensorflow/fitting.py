"""From the constants of a graph to the tree of the fitting of energies."""

import re

import numpy as np
import torch

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow.graph import Graph
from mdops.io.tensorflow.nets import Layers, Tree, collection, fitting_net, layers_by_name
from mdops.io.tensorflow.places import Part
from mdops.nn.net import Net

_SCOPE = "fitting_attr"


class Fitting:
    """The fitting nets of a graph, and what they take.

    Attributes:
        nets: their layers, by the number of the type of atom; by "" where one net is for all.
        inputs: how many numbers they take.
        extra: how many of these are frame and atomic parameters, (fparam, aparam).
    """

    def __init__(self, graph: Graph, stated: Tree) -> None:
        """`stated` is the section of the training input; empty where there is none."""
        self.graph = graph
        if stated.get("tot_ener_zero"):
            raise UnsupportedModelError("energies whose mean is taken off (tot_ener_zero) are not supported")
        self.nets = {net: layers for (net,), layers in _layers(graph, stated.get("layer_name")).items()}
        widths = {layers[0]["w"].shape[0] for layers in self.nets.values()}
        if len(widths) != 1 or ("" in self.nets and len(self.nets) > 1):
            raise ModelFileError(
                f"it has no fitting nets, or nets that do not fit each other: {sorted(self.nets)}"
            )
        (self.inputs,) = widths
        self.masks = bool(stated.get("use_aparam_as_mask"))
        counts = [graph.optional(f"{_SCOPE}/{name}") for name in ("dfparam", "daparam")]
        fparam, aparam = (0 if count is None else int(count.reshape(-1)[0]) for count in counts)
        self.extra = (fparam, 0 if self.masks else aparam)
        if min(self.extra) < 0 or sum(self.extra) >= self.inputs:
            raise ModelFileError(
                f"the fitting nets take {self.inputs} numbers, of which {self.extra} are parameters"
            )

    def tree(self, parts: list[Part], types: np.ndarray | None, type_map: list[str]) -> Tree:
        """The node, of nets that take the features of these parts in their order, and bias_atom_e.

        Graphs have the embedding of an atom's type, `types` (ntypes, d), behind the features. A mixed part gets it
        behind its own; without one it becomes a part of the bias of a net for each type.
        """
        ntypes = len(type_map)
        width = 0 if types is None else types.shape[1]
        features = sum(part.width for part in parts)
        if features + width + sum(self.extra) != self.inputs:
            raise ModelFileError(
                f"the fitting nets take {self.inputs} numbers, and there are {features} of descriptors, {width} of "
                f"types and {sum(self.extra)} parameters"
            )
        mixed = next((k for k, part in enumerate(parts) if part.mixed), None)
        if "" in self.nets and types is not None and mixed is None:
            nets = [self._of_type(self.nets[""], features, types[t]) for t in range(ntypes)]
        elif "" in self.nets:
            end = features if mixed is None else sum(part.width for part in parts[: mixed + 1])
            nets = [_moved(self.nets[""], features, width, end)]
        else:
            missing = [t for t in range(ntypes) if str(t) not in self.nets]
            if missing or types is not None:
                raise ModelFileError(f"the fitting net of type {missing[:1]} is missing")
            nets = [self.nets[str(t)] for t in range(ntypes)]
        at = 0
        for k, part in enumerate(parts):
            if part.scale != 1.0:
                nets = [_scaled(layers, slice(at, at + part.width), part.scale) for layers in nets]
            at += part.width + (width if k == mixed else 0)
        trees = [fitting_net(layers) for layers in nets]
        bias = self._bias(ntypes)
        vacuum = self._vacuum(bias, types, mixed is not None)
        return self._node(trees, bias, vacuum, features + (width if mixed is not None else 0), type_map)

    def _node(
        self, nets: list[Tree], bias: np.ndarray, vacuum: list[float | None], width: int, type_map: list[str]
    ) -> Tree:
        first, (fparam, aparam) = nets[0], self.extra
        values = {
            f"{name}_{ours}": self.graph.value(f"{_SCOPE}/t_{name}_{theirs}").reshape(-1) if count else None
            for name, count in (("fparam", fparam), ("aparam", aparam))
            for ours, theirs in (("avg", "avg"), ("inv_std", "istd"))
        }
        return {
            "@class": "Fitting",
            "@version": 4,
            "type": "ener",
            "var_name": "energy",
            "dim_out": 1,
            "ntypes": len(type_map),
            "dim_descrpt": width,
            **{key: first[key] for key in ("neuron", "resnet_dt", "activation_function", "precision")},
            "numb_fparam": fparam,
            "numb_aparam": aparam,
            "dim_case_embd": 0,
            "default_fparam": None,
            "rcond": None,
            "atom_ener": vacuum,
            "use_aparam_as_mask": self.masks,
            "exclude_types": [],
            "mixed_types": len(nets) == 1 and "" in self.nets,
            "nets": collection(
                nets, 0 if len(nets) == 1 and "" in self.nets else 1, len(type_map), "fitting_network"
            ),
            "@variables": {"bias_atom_e": bias.reshape(-1, 1), "case_embd": None, **values},
            "type_map": type_map,
            "tot_ener_zero": False,
            "trainable": [True] * (len(first["neuron"]) + 1),
            "layer_name": None,
            "spin": None,
        }

    def _of_type(self, layers: Layers, features: int, embedding: np.ndarray) -> Layers:
        """The net without the inputs behind the features, which are these constants."""
        first, end = layers[0], features + len(embedding)
        weight = first["w"]
        bias = embedding.astype(weight.dtype) @ weight[features:end] + (
            0 if first["b"] is None else first["b"]
        )
        return [{**first, "w": np.concatenate([weight[:features], weight[end:]]), "b": bias}, *layers[1:]]

    def _bias(self, ntypes: int) -> np.ndarray:
        """(ntypes,), eV, that the graph adds to the nets' energies; zeros where the bias of the last layers has it."""
        name = f"{_SCOPE}/t_bias_atom_e"
        values = self.graph.value(name).reshape(-1) if self.graph.is_taken(name) else np.zeros(ntypes)
        if values.shape != (ntypes,):
            raise ModelFileError(f"{name} has {values.size} numbers for {ntypes} types")
        return values.astype(np.float64)

    def _vacuum(self, bias: np.ndarray, types: np.ndarray | None, mixed: bool) -> list[float | None]:
        """What `atom_ener` has to be: not None for the types whose nets are evaluated for features of zero, too.

        One net of all types keeps its embedding of the type there, unlike elsewhere: what it gives is constant, and
        goes into `bias`."""
        taken = {net: self.graph.uses(layers[0]["name"]) > 1 for net, layers in self.nets.items()}
        if not any(taken.values()):
            return []
        if not mixed:
            every = [taken.get(str(t), taken.get("", False)) for t in range(len(bias))]
            return [float(energy) if known else None for energy, known in zip(bias, every, strict=True)]
        if sum(self.extra) or types is None:
            raise UnsupportedModelError(
                "energies in vacuum (atom_ener) of se_atten with frame or atomic parameters"
            )
        net = Net.from_tree(fitting_net(self.nets[""]), torch.float64)
        inputs = np.concatenate([np.zeros((len(bias), self.inputs - types.shape[1])), types], axis=1)
        with torch.no_grad():
            bias -= net(torch.from_numpy(inputs))[:, 0].numpy()
        return []


def _layers(graph: Graph, names: object) -> dict[tuple[str, ...], Layers]:
    """Of all fitting nets; `names` are those of layers that several fittings share, if the training input has any."""
    shared = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    places = (
        {f"share_{name}": k for k, name in enumerate(names) if name is not None}
        if isinstance(names, list)
        else {}
    )
    scopes = "|".join([r"layer_\d+", "final_layer", *(re.escape(f"share_{name}") for name in shared)])
    pattern = rf"(?P<scope>{scopes})(?:_type_(?P<net>\d+))?/(?P<kind>matrix|bias|idt)"
    hidden = [
        int(match["scope"][6:]) for match, _ in graph.constants(pattern) if match["scope"][:6] == "layer_"
    ]
    last = 1 + max([-1, *hidden, *(k for k in places.values() if k < len(places) - 1)])

    def number(match: re.Match[str]) -> int:
        scope = match["scope"]
        if scope in places:
            return places[scope]
        return last if scope == "final_layer" else int(scope[6:])

    return layers_by_name(graph, pattern, number)


def _moved(layers: Layers, features: int, width: int, to: int) -> Layers:
    """The net with the `width` inputs behind the features at another place among them."""
    weight = layers[0]["w"]
    rows = [weight[:to], weight[features : features + width], weight[to:features], weight[features + width :]]
    return [{**layers[0], "w": np.concatenate(rows)}, *layers[1:]]


def _scaled(layers: Layers, inputs: slice, factor: float) -> Layers:
    """The net for inputs that are larger by the inverse of a factor."""
    weight = layers[0]["w"].copy()
    weight[inputs] *= factor
    return [{**layers[0], "w": weight}, *layers[1:]]
