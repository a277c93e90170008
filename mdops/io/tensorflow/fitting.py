"""Makes the tree of a fitting from the constants of a graph."""

import re

import numpy as np

from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io.tensorflow.graph import Graph, Node
from mdops.io.tensorflow.nets import Layers, Tree, fitting_net, layers_by_name
from mdops.io.tensorflow.places import Part
from mdops.nn.net import collection_node

_SCOPE = "fitting_attr"

# Keys of the node, bias_atom_e, and further arrays of a kind of fitting.
Own = tuple[Tree, np.ndarray, Tree]


class Fitting:
    """The fitting nets of a graph, and their inputs.

    Attributes:
        nets: the layers of each net, by the number of the atom's type, or by "" if one net is for all types.
        inputs: the number of inputs.
        extra: how many of these are frame and atomic parameters, (fparam, aparam).
        absent: the types whose atoms have no results (`sel_type`).
    """

    def __init__(
        self, graph: Graph, kind: str, stated: Tree, ntypes: int, virtual: int = 0, suffix: str = ""
    ) -> None:
        """`kind` is the model's kind, `stated` the section of the training input (empty if there is none). The last
        `virtual` types are those of virtual atoms. The names of scopes end with `suffix`."""
        self.graph, self.kind, self.stated, self.virtual = graph, kind, stated, virtual
        self._is_part = bool(suffix)
        self._scope = f"{_SCOPE}{suffix}"
        if stated.get("tot_ener_zero"):
            raise UnsupportedModelError("energies without their mean (tot_ener_zero) are not supported")
        self.nets = {
            net: layers for (net,), layers in _layers(graph, stated.get("layer_name"), suffix).items()
        }
        widths = {layers[0]["w"].shape[0] for layers in self.nets.values()}
        if len(widths) != 1 or ("" in self.nets and len(self.nets) > 1):
            raise ModelFileError(
                f"it has no fitting nets, or nets that do not fit each other: {sorted(self.nets)}"
            )
        (self.inputs,) = widths
        self.absent = self._absent(ntypes)
        self.masks = bool(stated.get("use_aparam_as_mask"))
        counts = [graph.optional(f"{self._scope}/{name}") for name in ("dfparam", "daparam")]
        fparam, aparam = (0 if count is None else int(count.reshape(-1)[0]) for count in counts)
        self.extra = (fparam, 0 if self.masks else aparam)
        if min(self.extra) < 0 or sum(self.extra) >= self.inputs:
            raise ModelFileError(
                f"the fitting nets have {self.inputs} inputs, which do not fit {self.extra} frame and atomic parameters"
            )

    @property
    def outputs(self) -> int:
        """The number of outputs of the nets."""
        return _outputs(list(self.nets.values()))

    def _absent(self, ntypes: int) -> list[int]:
        selected = self.graph.optional("model_attr/sel_type")
        if self.kind == "ener":
            return list(range(ntypes - self.virtual, ntypes))
        if selected is None:
            return []
        known = {int(t) for t in selected.reshape(-1)}
        return [t for t in range(ntypes) if t not in known]

    def tree(self, parts: list[Part], types: np.ndarray | None, type_map: list[str]) -> Tree:
        """The fitting's node. Its nets take the features of these parts in their order.

        In graphs the embedding of an atom's type, `types` (ntypes, d), follows all features. In the tree it follows the
        features of the last mixed part; without one it becomes a part of the bias of a net for each type. If energies
        in vacuum are subtracted, they are computed with the embedding: a part of pairwise_dprc and a model of
        se_a_ebd_v2 record this (`types_in_vacuum`), and others get a net for each type, which DeePMD-kit reads.
        """
        ntypes = len(type_map)
        width = 0 if types is None else types.shape[1]
        features = sum(part.width for part in parts)
        if features + width + sum(self.extra) != self.inputs:
            raise ModelFileError(
                f"the fitting nets have {self.inputs} inputs, but there are {features} features, {width} numbers of a "
                f"type embedding and {sum(self.extra)} parameters"
            )
        mixed = max((k for k, part in enumerate(parts) if part.mixed), default=None)
        vacuum = self._vacuum(ntypes)
        keeps_types = self._is_part or any(part.node["type"] == "se_a_ebd_v2" for part in parts)
        in_vacuum = width if keeps_types and mixed == len(parts) - 1 and any(vacuum) else 0
        if mixed is not None and any(vacuum) and not in_vacuum:
            mixed = None
        for k, part in enumerate(parts):
            if part.mixed:
                part.node["concat_output_tebd"] = k == mixed
        if "" in self.nets and types is not None and mixed is None:
            nets = [self._of_type(self.nets[""], features, types[t]) for t in range(ntypes)]
        elif "" in self.nets:
            end = features if mixed is None else sum(part.width for part in parts[: mixed + 1])
            nets = [_moved(self.nets[""], features, width, end)]
        else:
            missing = [t for t in range(ntypes) if str(t) not in self.nets and t not in self.absent]
            if missing or types is not None:
                raise ModelFileError(f"the fitting net of type {missing[:1]} is missing")
            # A type without results needs some net, which has no effect.
            nets = [self.nets.get(str(t), next(iter(self.nets.values()))) for t in range(ntypes)]
        at = 0
        for k, part in enumerate(parts):
            if part.scale != 1.0:
                nets = [_scaled(layers, slice(at, at + part.width), part.scale) for layers in nets]
            at += part.width + (width if k == mixed else 0)
        axes = sum(part.node["neuron"][-1] for part in parts if "neuron" in part.node)
        own, bias, arrays = getattr(self, f"_{self.kind}")(nets, axes, ntypes)
        if self.kind == "ener":
            energies = [float(e) if has else None for e, has in zip(bias, vacuum, strict=True)]
            own |= {"atom_ener": energies if any(vacuum) else [], "types_in_vacuum": in_vacuum}
        if own.get("fit_diag") is False:  # TensorFlow adds the transpose without halving the sum
            nets = [_doubled(layers) for layers in nets]
        width = features + (width if mixed is not None else 0)
        return self._node([fitting_net(layers) for layers in nets], own, bias, arrays, width, type_map)

    def _ener(self, nets: list[Layers], axes: int, ntypes: int) -> Own:
        bias = self._bias("t_bias_atom_e", ntypes - self.virtual, 1)
        return {"var_name": "energy", "dim_out": 1}, np.pad(bias, (0, self.virtual)), {}

    def _dos(self, nets: list[Layers], axes: int, ntypes: int) -> Own:
        width = _outputs(nets)
        own = {"var_name": "dos", "dim_out": width, "atom_ener": None}
        return own, self._bias("t_bias_dos", ntypes, width), {}

    def _dipole(self, nets: list[Layers], axes: int, ntypes: int) -> Own:
        _require_outputs(nets, axes)
        own = {"embedding_width": axes, "r_differentiable": True, "c_differentiable": True}
        return {**own, "var_name": "dipole"}, np.zeros((ntypes, axes)), {}

    def _polar(self, nets: list[Layers], axes: int, ntypes: int) -> Own:
        width = _require_outputs(nets, axes, axes * axes)
        own = {"embedding_width": axes, "fit_diag": width == axes, "shift_diag": True, "var_name": "polar"}
        scale, shift = self._polar_statistics(ntypes)
        # TensorFlow adds the shift after scaling.
        if ((scale == 0) & (shift != 0)).any():
            raise UnsupportedModelError("polarizabilities with a scale of 0 and a shift are not supported")
        constant = np.divide(shift, scale, out=np.zeros_like(shift), where=scale != 0)
        arrays = {"scale": scale.reshape(-1, 1), "constant_matrix": constant}
        return own, np.zeros((ntypes, width)), arrays

    def _polar_statistics(self, ntypes: int) -> tuple[np.ndarray, np.ndarray]:
        """(ntypes,) each: the factors of polarizabilities, and the terms added to their diagonals."""
        if "" not in self.nets:
            found = {int(t): self._scale_and_shift(layers[-1]["name"]) for t, layers in self.nets.items()}
            scale, shift = np.array([found.get(t, (1.0, 0.0)) for t in range(ntypes)]).T
            return scale, shift
        stated = self.stated.get("scale")
        if not self.stated:
            raise UnsupportedModelError(
                "polarizabilities by one net for all types, in a graph without its training input, are not supported"
            )
        scale = np.broadcast_to(np.asarray(1.0 if stated is None else stated, np.float64), ntypes).copy()
        name = f"{self._scope}/t_constant_matrix"
        shift = self.graph.value(name).reshape(-1) if self.graph.is_taken(name) else np.zeros(ntypes)
        if shift.shape != (ntypes,):
            raise ModelFileError(f"{name} has {shift.size} numbers for {ntypes} types")
        return scale, shift.astype(np.float64)

    def _scale_and_shift(self, matrix: str) -> tuple[float, float]:
        """The scale and shift of a net's type, from the operations after its last layer: the product with the vectors
        on both sides, then the product with the scale, then the sum with the shift."""
        node, products = self.graph.nodes[matrix], 0
        while products < 3:
            behind = [n for n in self.graph.forward(node.name) if n.op not in ("Shape", "Transpose")]
            if not behind:
                raise ModelFileError(f"nothing follows {node.name}, the layer of a polarizability")
            node = behind[0]
            products += node.op in ("MatMul", "BatchMatMul", "BatchMatMulV2")
        (reshaped,) = self._behind(node.name, "Reshape")
        (scaled,) = self._behind(reshaped.name, "Mul")
        (shifted,) = self._behind(scaled.name, "Add", "AddV2")
        (other,) = (name for name in shifted.inputs if self.graph.origin(name).name != scaled.name)
        return self._factor(scaled.name), self._factor(other)

    def _behind(self, name: str, *ops: str) -> list[Node]:
        """The only node of these operations that takes `name`. Raises ModelFileError if there is none, or several."""
        found = [node for node in self.graph.forward(name) if node.op in ops]
        if len(found) != 1:
            raise ModelFileError(f"{name} should be followed by {ops[0]}, as in a model of polarizabilities")
        return found

    def _factor(self, product: str) -> float:
        """The factor of a product that is a number: a constant, or one value of a constant vector."""
        for name in self.graph.origin(product, ("Identity", "Cast")).inputs:
            node = self.graph.origin(name)
            if node.op == "Slice":
                values = self.graph.value(node.inputs[0]).reshape(-1)
                first = int(self.graph.value(node.inputs[1]).reshape(-1)[0])
                if 0 <= first < values.size:
                    return float(values[first])
            elif node.op == "Const":
                values = self.graph.value(name if name in self.graph else node.name)
                if values.size == 1:
                    return float(values.item())
        raise ModelFileError(f"{product} should multiply with a number, as in a model of polarizabilities")

    def _node(
        self, nets: list[Tree], own: Tree, bias: np.ndarray, arrays: Tree, width: int, type_map: list[str]
    ) -> Tree:
        first, (fparam, aparam) = nets[0], self.extra
        values = {
            f"{name}_{ours}": self.graph.value(f"{_SCOPE}/t_{name}_{theirs}").reshape(-1) if count else None
            for name, count in (("fparam", fparam), ("aparam", aparam))
            for ours, theirs in (("avg", "avg"), ("inv_std", "istd"))
        }
        shared = len(nets) == 1 and "" in self.nets
        return {
            "@class": "Fitting",
            "@version": 5 if self.kind == "polar" else 4,
            "type": self.kind,
            "ntypes": len(type_map),
            "dim_descrpt": width,
            **{key: first[key] for key in ("neuron", "resnet_dt", "activation_function", "precision")},
            **own,
            "numb_fparam": fparam,
            "numb_aparam": aparam,
            "dim_case_embd": 0,
            "default_fparam": None,
            "rcond": None,
            "use_aparam_as_mask": self.masks,
            "exclude_types": self.absent,
            "mixed_types": shared,
            "nets": collection_node(nets, 0 if shared else 1, len(type_map), "fitting_network"),
            "@variables": {
                "bias_atom_e": bias.reshape(len(type_map), -1),
                "case_embd": None,
                **values,
                **arrays,
            },
            "type_map": type_map,
            "tot_ener_zero": False,
            "trainable": [True] * (len(first["neuron"]) + 1),
            "layer_name": None,
            "spin": None,
        }

    def _of_type(self, layers: Layers, features: int, embedding: np.ndarray) -> Layers:
        """The net without the inputs after the features, which are these constants."""
        first, end = layers[0], features + len(embedding)
        weight = first["w"]
        bias = embedding.astype(weight.dtype) @ weight[features:end] + (
            0 if first["b"] is None else first["b"]
        )
        return [{**first, "w": np.concatenate([weight[:features], weight[end:]]), "b": bias}, *layers[1:]]

    def _bias(self, name: str, ntypes: int, width: int) -> np.ndarray:
        """The bias that the graph adds to the nets' outputs, (ntypes,) or (ntypes, width); zeros if it is in the bias
        of their last layers."""
        name, shape = f"{self._scope}/{name}", (ntypes, width) if width > 1 else (ntypes,)
        values = self.graph.value(name) if self.graph.is_taken(name) else np.zeros(shape)
        if values.size != ntypes * width:
            raise ModelFileError(f"{name} has {values.size} numbers for {ntypes} types")
        return values.reshape(shape).astype(np.float64)

    def _vacuum(self, ntypes: int) -> list[bool]:
        """For each type, whether its net at zero features is subtracted (`atom_ener`)."""
        taken = {net: self.graph.uses(layers[0]["name"]) > 1 for net, layers in self.nets.items()}
        return [taken.get(str(t), taken.get("", False)) for t in range(ntypes)]


def _layers(graph: Graph, names: object, suffix: str) -> dict[tuple[str, ...], Layers]:
    """The layers of all fitting nets. `names`, from the training input, are those of layers that fittings share."""
    shared = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    places = (
        {f"share_{name}": k for k, name in enumerate(names) if name is not None}
        if isinstance(names, list)
        else {}
    )
    scopes = "|".join([r"layer_\d+", "final_layer", *(re.escape(f"share_{name}") for name in shared)])
    pattern = rf"(?P<scope>{scopes})(?:_type_(?P<net>\d+))?{re.escape(suffix)}/(?P<kind>matrix|bias|idt)"
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


def _outputs(nets: list[Layers]) -> int:
    """The number of outputs of the nets."""
    (width, *others) = {layers[-1]["w"].shape[1] for layers in nets}
    if others:
        raise ModelFileError(f"the fitting nets have different numbers of outputs: {width} and {others[0]}")
    return int(width)


def _require_outputs(nets: list[Layers], *widths: int) -> int:
    """The number of outputs of the nets, which must be one of these."""
    found = _outputs(nets)
    if found not in widths:
        raise ModelFileError(f"the fitting nets have {found} outputs, expected {widths[0]}")
    return found


def _doubled(layers: Layers) -> Layers:
    """The net with doubled output."""
    last = layers[-1]
    bias = None if last["b"] is None else 2 * last["b"]
    return [*layers[:-1], {**last, "w": 2 * last["w"], "b": bias}]


def _moved(layers: Layers, features: int, width: int, to: int) -> Layers:
    """The net with the `width` inputs behind the features at another place among them."""
    weight = layers[0]["w"]
    rows = [weight[:to], weight[features : features + width], weight[to:features], weight[features + width :]]
    return [{**layers[0], "w": np.concatenate(rows)}, *layers[1:]]


def _scaled(layers: Layers, inputs: slice, factor: float) -> Layers:
    """The net for these inputs divided by the factor."""
    weight = layers[0]["w"].copy()
    weight[inputs] *= factor
    return [{**layers[0], "w": weight}, *layers[1:]]
