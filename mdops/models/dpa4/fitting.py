"""The fitting dpa4_ener: a net of gated layers from a descriptor to an atom's energy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from mdops.errors import UnsupportedModelError
from mdops.models import schema
from mdops.models.contract import Tree
from mdops.models.dpa4.options import automatic_width
from mdops.models.ener import EnergyNet
from mdops.models.keys import precision_key
from mdops.models.net_fitting import ARRAYS, KEYS, EnergyOptions, NetFitting
from mdops.models.registry import register
from mdops.models.shapes import require_same
from mdops.models.variables import load_variables, variables_of
from mdops.nn.equivariant.linear import Dense, zeros
from mdops.nn.net import collection_node
from mdops.ops.layer_output import layer_output
from mdops.options import key, saved_precision

_STREAM = 1  # of random numbers; descriptors use 0
_FIRST_FILM = 0.01
_CODE = 4  # the code's width over the descriptor's


@dataclass(kw_only=True)
class DPA4FittingOptions(EnergyOptions):
    KIND = "sezm_ener"
    NAMES = ("dpa4_ener", "sezm_ener")

    neuron: list[int] = key(
        [0], "widths of the hidden layers; 0: chosen by the descriptor", alias=["n_neuron"], low=0, absent=...
    )
    activation_function: str = key("silu", "activation function of the gates")
    precision: str = precision_key("float32")
    resnet_dt: bool = key(False, "no effect", of="training", absent=False)
    dim_out: int = key(1, "values an atom", low=1, where="file")
    case_film_embd: bool = key(False, "the model's constant changes the layers instead of being an input")


class GatedLayer(nn.Module):
    """a f(b) of the two halves (a, b) of x W + b."""

    def __init__(self, inputs: int, outputs: int, function: str) -> None:
        super().__init__()
        self.linear, self.function = Dense(inputs, 2 * outputs, bias=True), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.linear(x).chunk(2, 1)
        return value * layer_output(gate.contiguous(), None, self.function)


class HeadFilm(nn.Module):
    """x (1 + s tanh(code P)) + t tanh(code Q): a head's own scale and shift of the descriptor and of each layer."""

    def __init__(self, heads: int, width: int, targets: Sequence[int], function: str) -> None:
        super().__init__()
        self.case_layer1 = Dense(heads, automatic_width(heads, 4), function)
        self.case_layer2 = Dense(automatic_width(heads, 4), _CODE * width)
        self.projectors = nn.ParameterList(zeros(_CODE * width, 2 * target) for target in targets)
        first = torch.full((len(targets),), _FIRST_FILM, dtype=torch.float64).log()
        self.adam_case_film_scale_strength_log = nn.Parameter(first.clone())
        self.adam_case_film_shift_strength_log = nn.Parameter(first.clone())

    def code(self, head: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.case_layer2(self.case_layer1(head[None]))
        return found

    def changed(self, x: torch.Tensor, code: torch.Tensor, target: int) -> torch.Tensor:
        scale, shift = (code @ self.projectors[target]).chunk(2, 1)
        of_scale = self.adam_case_film_scale_strength_log[target].exp()
        of_shift = self.adam_case_film_shift_strength_log[target].exp()
        return x * (1 + of_scale * scale.tanh()) + of_shift * shift.tanh()


class GatedNet(nn.Module):
    """Gated layers and a last linear layer, (n, inputs) to (n, outputs)."""

    CLASS: ClassVar[str] = "GLUFittingNet"
    NODE: ClassVar[schema.Node] = schema.Node(
        {
            "in_dim": (schema.count, schema.REQUIRED),
            "out_dim": (schema.count, schema.REQUIRED),
            "neuron": (schema.list_of(schema.count), schema.REQUIRED),
            "activation_function": (schema.text, "silu"),
            "resnet_dt": (schema.boolean, False),
            "precision": schema.precision,
            "bias_out": (schema.boolean, False),
            "descriptor_dim": (schema.optional(schema.count), None),
            "dim_case_embd": (schema.count, 0),
            "case_film_embd": (schema.boolean, False),
            "@variables": schema.part,
        }
    )

    def __init__(self, node: Tree) -> None:
        """With the widths and options of a node."""
        super().__init__()
        self.node = {name: value for name, value in node.items() if name != "@variables"}
        widths, function = [node["in_dim"], *node["neuron"]], node["activation_function"]
        self.inputs, self.width = node["in_dim"], node["descriptor_dim"] or node["in_dim"]
        self.hidden_layers = nn.ModuleList(GatedLayer(a, b, function) for a, b in pairwise(widths))
        self.case_film = None
        if node["case_film_embd"]:
            targets = [self.width, *node["neuron"]]
            self.case_film = HeadFilm(node["dim_case_embd"], self.width, targets, function)
        self.output_layer = Dense(widths[-1], node["out_dim"], bias=node["bias_out"])

    def forward(self, x: torch.Tensor, head: torch.Tensor | None = None) -> torch.Tensor:
        """`head`: (heads,), identifies the head, if heads change scale and shift."""
        film = self.case_film
        if film is not None:
            assert head is not None
            code = film.code(head)
            x = torch.cat([film.changed(x[:, : self.width], code, 0), x[:, self.width :]], 1)
        for k, layer in enumerate(self.hidden_layers):
            x = layer(x)
            x = x if film is None else film.changed(x, code, k + 1)
        found: torch.Tensor = self.output_layer(x)
        return found

    def to_tree(self, precision: str) -> Tree:
        return {**self.node, "precision": precision, "@variables": variables_of(self, precision)}


class GatedNets(nn.ModuleList):
    """One net for all types (`ndim` 0), or one a type (1)."""

    TYPE: ClassVar[str] = "sezm_fitting_network"

    def __init__(self, nets: Iterable[GatedNet], ndim: int, ntypes: int) -> None:
        super().__init__(nets)
        self.ndim, self.ntypes = ndim, ntypes

    def net(self, kind: int) -> GatedNet:
        """The net of a type."""
        found = self[kind if self.ndim else 0]
        assert isinstance(found, GatedNet)
        return found

    @property
    def nets(self) -> list[GatedNet]:
        return [net for net in self if isinstance(net, GatedNet)]

    def to_tree(self, precision: str, resnet_dt: bool) -> Tree:
        nets = [net.to_tree(precision) for net in self.nets]
        return collection_node(nets, self.ndim, self.ntypes, self.TYPE)


@register
class DPA4Fitting(EnergyNet):
    """Fits energies by nets of gated layers. `bias` is (ntypes, 1)."""

    Options = DPA4FittingOptions
    NODE = schema.Node(KEYS, ARRAYS)
    NODES: ClassVar[dict[str, schema.Node]] = {GatedNet.CLASS: GatedNet.NODE}

    @property
    def head_changes_layers(self) -> bool:
        """Whether the head changes the net's layers instead of being an input."""
        found: bool = self.nets.nets[0].case_film is not None
        return found

    @property
    def extra_size(self) -> int:
        return super().extra_size - (self.case_embedding.shape[0] if self.head_changes_layers else 0)

    def extra_inputs(self, *given: Any) -> torch.Tensor:
        return super().extra_inputs(*given)[:, : self.extra_size]

    def net(self, kind: int) -> Any:
        net = self.nets.net(kind)
        return (lambda x: net(x, self.case_embedding)) if self.head_changes_layers else net

    @classmethod
    def nets_of_tree(cls, tree: Tree, dtype: torch.dtype) -> Any:
        collection = tree["nets"]
        if any(node is None for node in collection["networks"]):
            raise UnsupportedModelError("a model without the nets of some types is not supported")
        nets = [GatedNet(node) for node in collection["networks"]]
        for k, (net, node) in enumerate(zip(nets, collection["networks"], strict=True)):
            load_variables(net, node["@variables"], f"the net {k} of the fitting dpa4_ener")
        return GatedNets(nets, collection["ndim"], collection["ntypes"]).to(dtype)

    def to_tree(self) -> Tree:
        return {**super().to_tree(), "atom_ener": list(self.options.atom_ener) or None}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        found = super().definition_of_tree(tree)
        return {**found, "type": "dpa4_ener", "atom_ener": tree["atom_ener"] or []}

    @staticmethod
    def net_inputs_of_tree(tree: Tree) -> int:
        found = NetFitting.net_inputs_of_tree(tree)
        return found - (tree["dim_case_embd"] if tree["case_film_embd"] else 0)

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], width: int | None, place: str) -> None:
        require_same(tree["nets"]["network_type"], GatedNets.TYPE, f"{place}.nets.network_type")
        for i, net in enumerate(tree["nets"]["networks"]):
            if net is not None:
                require_same(net.get("@class"), GatedNet.CLASS, f"the class of {place}.nets[{i}]")
                require_same(net["neuron"], tree["neuron"], f"{place}.nets[{i}].neuron")
        super().check_tree(tree, type_map, width, place)

    @classmethod
    def random(
        cls,
        options: Any,
        type_map: Sequence[str],
        width: int,
        mixed_types: bool,
        seed: int,
        dtype: torch.dtype,
        axes: int = 0,
    ) -> "DPA4Fitting":
        options = cls.for_axes(options, axes)
        films = options.case_film_embd and options.dim_case_embd > 0
        inputs = width + sum(options.parameter_sizes.values()) + (0 if films else options.dim_case_embd)
        options.neuron = [hidden or automatic_width(inputs, 8 / 3) for hidden in options.neuron]
        precision = saved_precision(options.precision)
        node = {
            "@class": GatedNet.CLASS,
            "@version": 1,
            "in_dim": inputs,
            "out_dim": options.dim_out,
            "neuron": list(options.neuron),
            "activation_function": options.activation_function,
            "resnet_dt": options.resnet_dt,
            "precision": precision,
            "bias_out": False,
            "descriptor_dim": width,
            "dim_case_embd": options.dim_case_embd,
            "case_film_embd": films,
        }
        own = seed if options.seed is None else options.seed
        nets = GatedNets(
            (GatedNet(node) for _ in range(1 if mixed_types else len(type_map))),
            0 if mixed_types else 1,
            len(type_map),
        )
        random = np.random.default_rng([own, _STREAM])
        for part in nets.modules():
            if isinstance(part, Dense):
                part.reset(random)
        nets = nets.to(torch.float32 if precision == "float32" else dtype).to(dtype)
        return cls(options, type_map, nets, *cls.new_parameters(options, type_map, dtype))

    def summary(self) -> dict[str, str]:
        sizes, hidden = self.parameter_sizes, "-".join(str(n) for n in self.options.neuron)
        return {
            "fitting nets": f"{hidden}, gated, {'one for all types' if self.shared else 'one a type'}",
            "frame, atomic": f"{sizes['fparam']} frame and {sizes['aparam']} atomic parameters",
        }
