"""The parts of every model: descriptors, fittings, and atomic models, with an output per atom.

A kind is a class in a file of its own that gives `options`, how it is made from a serialised tree and from random
numbers, how it is written, and `forward`. `register` (mdops.models.registry) makes it known; loading, saving, training,
the calculator and the engine then work with it, by plain autograd until an evaluator (mdops.evaluators) learns
something faster.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mdops.errors import ConfigError, InputError, ModelFileError, UnsupportedModelError
from mdops.models.neighborhood import Neighborhood, NeighborSpec, pair_matrix
from mdops.models.schema import MODEL_ARRAYS, Node
from mdops.models.shapes import (
    check_collection,
    check_pairs,
    check_statistics,
    check_type_map,
    check_types,
    require_same,
)
from mdops.models.spin import Spin
from mdops.models.statistics import environment_statistics
from mdops.models.variables import load_variables, variables_of
from mdops.nn.equivariant.linear import draw_weights
from mdops.nn.net import NetCollection, array, tensor
from mdops.options import Options, saved_precision

Tree = dict[str, Any]


class Output(NamedTuple):
    """An output of a model for each atom.

    Attributes:
        name: such as "energy"; results are `atom_<name>` (N, *shape), and `<name>` (S, *shape) if `extensive`.
        shape: per atom.
        unit: its unit.
        extensive: whether the atoms' sum is a property of the system.
        differentiated: whether minus its gradients by positions and strain are answers, too: `forces`
            (N, *shape, 3) and `virial` (S, *shape, 3, 3), where of an output with components the force's comes first.
        intensive: whether the atoms' mean is a property of the system; then `<name>` is that, (S, *shape).
        by_type: whether each type has an average of its own in the data.
        of_atoms: the name of the atoms' results, if it is not `atom_<name>`.
    """

    name: str
    shape: tuple[int, ...] = ()
    unit: str = ""
    extensive: bool = True
    differentiated: bool = False
    intensive: bool = False
    by_type: bool = True
    of_atoms: str = ""

    @property
    def atom_name(self) -> str:
        """The name of the atoms' results."""
        return self.of_atoms or f"atom_{self.name}"


ENERGY = Output("energy", (), "eV", differentiated=True)
# Energies, and forces that are no derivatives of these.
DIRECT = (
    ENERGY._replace(differentiated=False),
    Output("forces", (3,), "eV/A", extensive=False, of_atoms="forces"),
)


def tables_of(module: nn.Module) -> list[nn.Parameter]:
    """The parameters below a module that are `ModelComponent.TABLES`, or whose names say so as DeePMD-kit's do:
    those that begin with "adam_", and biases."""
    tables = [getattr(part, name) for part in module.modules() for name in getattr(part, "TABLES", ())]
    return [*tables, *_named(module, lambda name: name.startswith("adam_") or "bias" in name)]


def decayed_of(module: nn.Module) -> list[nn.Parameter]:
    """The parameters whose names begin with "adamw_", without biases: HybridMuon leaves them to Adam, with decay."""
    return _named(module, lambda name: name.startswith("adamw_") and "bias" not in name)


def _named(module: nn.Module, holds: Callable[[str], bool]) -> list[nn.Parameter]:
    """Those with such a name of their own; an index in a list is no name."""
    names = ((name.rstrip("0123456789.").rpartition(".")[2], p) for name, p in module.named_parameters())
    return [p for name, p in names if holds(name)]


class Features(NamedTuple):
    """A descriptor's features of each atom.

    Attributes:
        values: (N, D), invariant under rotations.
        axes: (N, 3, M), vectors that rotate with the system, for fittings of vectors and tensors; or None.
    """

    values: torch.Tensor
    axes: torch.Tensor | None = None

    def of_atoms(self, run: slice) -> "Features":
        """Those of these atoms alone."""
        return Features(self.values[run], None if self.axes is None else self.axes[run])

    def with_zeros(self, count: int) -> "Features":
        """Appends zeros for so many atoms."""
        found = [
            None if part is None else torch.cat((part, part.new_zeros(count, *part.shape[1:])))
            for part in self
        ]
        return Features(*found)  # type: ignore[arg-type]


def joined(parts: "Sequence[Features]") -> Features:
    """Joins those of several descriptors."""
    if len(parts) == 1:
        return parts[0]
    axes = [part.axes for part in parts if part.axes is not None]
    return Features(torch.cat([part.values for part in parts], 1), torch.cat(axes, 2) if axes else None)


class ModelComponent(nn.Module):
    """Base of descriptors, fittings and atomic models.

    Attributes:
        Options: the class of its options, which names the kind.
        NODE: what its node in a file holds beside the options; None: `from_tree` alone checks it. A
            subclass does not inherit it.
        NODES: other nodes that only this kind has, by their "@class", or by the key that holds them.
        TABLES: names of parameters that are tables, not matrices of layers; HybridMuon leaves them to Adam
            (`tables_of`). Parts that are not kinds may have the attribute, too.
        FILED: other names of its nodes in DeePMD-kit's files; `tree_of_file` gives them the one of mdops.
        OWN: its description, if DeePMD-kit's files cannot hold it.
        options: its options; they do not change.
    """

    Options: ClassVar[type[Options]]
    NODE: ClassVar[Node | None] = None
    NODES: ClassVar[dict[str, Node]] = {}
    TABLES: ClassVar[tuple[str, ...]] = ()
    FILED: ClassVar[tuple[str, ...]] = ()
    OWN: ClassVar[str] = ""
    options: Any

    @property
    def kind(self) -> str:
        """Its name in model files."""
        return self.options.KIND

    @abstractmethod
    def to_tree(self) -> Tree:
        """The node from which `from_tree` makes it again; DeePMD-kit reads it if it knows the kind."""

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        """The section of an input that makes one with the options of a node. What a node does not keep (seeds, the name
        of a pair table's file) is left out, or has a name that says what belongs there."""
        return {key: value for key, value in tree.items() if key not in _NO_OPTIONS and _is_plain(value)}

    @classmethod
    def tree_of_file(cls, tree: Tree) -> Tree:
        """Converts a node of DeePMD-kit's files to that of mdops, if their layouts differ."""
        return tree

    @classmethod
    def file_of_tree(cls, tree: Tree) -> Tree:
        """The reverse of `tree_of_file`."""
        return tree

    @classmethod
    def completed_tree(cls, tree: Tree) -> Tree:
        """Brings a node of `NODE` with all keys to the form of later versions."""
        return tree

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        """The node for only these types, in this order, and with these elements. Results for systems of these types
        stay the same.

        Raises UnsupportedModelError if weights belong to a type: others cannot replace them.
        """
        raise UnsupportedModelError(
            f"{cls.Options.KIND} with other types than it was made for is not supported"
        )

    def summary(self) -> dict[str, str]:
        """The lines that `mdops info` shows, by name."""
        return {}

    def set_trained(self) -> None:
        """Freezes the weights unless the options have `trainable`."""
        trainable = getattr(self.options, "trainable", True)
        self.requires_grad_(all(trainable) if isinstance(trainable, list) else bool(trainable))


class Descriptor(ModelComponent):
    """Features of the surroundings of an atom, invariant under rotations.

    Attributes:
        mixed: whether neighbours of all types share places, if the same for all of the kind.
        type_map: the elements, by their types.
    """

    mixed: ClassVar[bool] = False
    type_map: list[str]

    @property
    @abstractmethod
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        """Its capacity for neighbours: that of the longest cutoff first, then those of shorter ones."""

    @property
    def spec(self) -> NeighborSpec:
        """The neighbours within its longest cutoff."""
        return self.neighbors[0]

    @property
    def reach(self) -> int:
        """How many cutoffs away an atom can change another's features: 1 unless layers pass messages."""
        return 1

    @property
    def charge_spin_defaults(self) -> tuple[Sequence[float] | None, ...]:
        """The default of the embedding of each system's charge and multiplicity, if it has one; None: systems
        without them are refused."""
        return ()

    @property
    @abstractmethod
    def width(self) -> int:
        """D, the number of features of an atom."""

    @property
    def axes(self) -> int:
        """M, the number of axes of an atom (`Features.axes`)."""
        return 0

    @property
    def cutoff(self) -> float:
        """A."""
        return self.spec.cutoff

    @property
    def mixed_types(self) -> bool:
        """Whether the features include the centre's type, so that one fitting net may serve all types."""
        return self.spec.mixed

    @property
    def has_types(self) -> bool:
        """Whether features include the centre's type: then a new fitting has one net for all types."""
        return self.mixed_types

    @property
    def shares_types(self) -> bool:
        """Whether it shares the model's type embedding, as in DeePMD-kit's TensorFlow backend."""
        return False

    @abstractmethod
    def forward(self, near: Neighborhood) -> Features:
        """The features of every atom of `near`, as `select` returns it for this descriptor."""

    def values_alone(self) -> None:
        """Called by the model if `Features.axes` is not read: what only makes axes need not run."""

    @property
    def parts(self) -> "list[Descriptor]":
        """Itself, or the parts of a hybrid."""
        return [self]

    @property
    def inner(self) -> "list[Descriptor]":
        """Those that its own numbers begin with, if there are any: splines may stand for their nets, too."""
        return []

    @property
    def captures(self) -> bool:
        """Whether its passes never wait for a GPU, so that a CUDA graph can have them."""
        return False

    def takes_matmul(self, matmul: str) -> bool:
        """Whether some products have the accuracy of `near.matmul`, in simulations in float32 on a GPU."""
        return False

    def graph_sizes(self, within: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """(N, 3) int64: how many edges, angles, and edges that make angles, an atom has at most in the graphs that it
        makes; None: it makes none.

        Args:
            within: how many neighbours there are within each of the cutoffs of `neighbors` (`NeighborReport.within`).
        """
        return None

    @property
    def ends_at_cutoff(self) -> bool:
        """Whether it ignores neighbours in its list beyond its cutoff, as in a hybrid: they take no places
        that would count."""
        return False

    @property
    def is_local(self) -> bool:
        """Whether an atom's features depend only on its own neighbours' pair vectors and types, so that atoms can be
        taken in runs (`atoms_at_once`, of this or another part of a hybrid)."""
        return False

    def atoms_at_once(self, near: Neighborhood) -> int | None:
        """For how many atoms to run the forward and backward pass at once, for memory or caches, if it `is_local`;
        None: any number."""
        return None

    # The next three are for kinds that `cls(options, type_map)` makes, with their whole state in parameters and
    # buffers. Others override them.

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> Self:
        """Raises UnsupportedModelError for an option that is not implemented."""
        make: Callable[..., Self] = cls
        made = make(cls.Options.from_tree(tree), list(type_map)).to(dtype)
        load_variables(made, tree.get("@variables", {}), f"the descriptor {cls.Options.KIND}")
        return made

    @classmethod
    def random(cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> Self:
        """A new one, before training; `sel` is known. Statistics of the data come later."""
        make: Callable[..., Self] = cls
        random = np.random.default_rng(seed)
        with torch.random.fork_rng(devices=[]):  # PyTorch's modules draw their weights as they are made
            torch.manual_seed(int(random.integers(2**63)))
            made = make(options, list(type_map))
        draw_weights(made, random)
        return made.to(dtype)

    def to_tree(self) -> Tree:
        precision = saved_precision(getattr(self.options, "precision", "default"))
        variables = {"@variables": variables_of(self, precision)}
        head = {"@class": "Descriptor", "@version": 1, "type": self.kind, "type_map": list(self.type_map)}
        return {**head, **self.options.to_tree(), **variables}

    def learn_statistics(self, frames: Iterable[Neighborhood], absent: Sequence[Sequence[int]]) -> None:
        """Takes statistics of the data for a new descriptor; by default none.

        Args:
            frames: all pairs of some of the data's frames within `cutoff`, in float64; to be read once.
            absent: pairs of types that the model leaves out.
        """

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        """Raises ModelFileError for a node of `NODE` whose parts do not fit each other or the types."""

    @classmethod
    def width_of_tree(cls, tree: Tree) -> int | None:
        """D of a node of `NODE`; None if a part's is unknown."""
        return None


# Keys of a node that are no options of an input, besides nets and arrays.
_NO_OPTIONS = ("@class", "@version", "type_map", "ntypes", "spin")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, str | bool | int | float)


def renumbered(listed: Sequence[Any], types: Sequence[int]) -> list[Any]:
    """Types, or pairs of them, as indices into `types`; those not in it are left out."""
    place = {old: new for new, old in enumerate(types)}
    found: list[Any] = []
    for one in listed:
        if isinstance(one, int):
            found += [place[one]] if one in place else []
        elif all(t in place for t in one):
            found.append([place[t] for t in one])
    return found


def without_none(tree: Tree) -> Tree:
    """A node without the keys that are None, except the type map."""
    return {name: value for name, value in tree.items() if value is not None or name == "type_map"}


def environment_node(options: Mapping[str, Any]) -> Tree:
    """The options that nodes of descriptors of the environment matrix repeat."""
    cutoffs = {"rcut": options["rcut"], "rcut_smth": options["rcut_smth"]}
    return {**cutoffs, "protection": options["env_protection"], "use_exp_switch": False}


def statistics_arrays(
    mean: torch.Tensor, std: torch.Tensor, slots: int, precision: str, columns: int = 4
) -> Tree:
    """The arrays davg and dstd (ntypes, slots, columns) of files."""
    davg = F.pad(mean[:, None, None], (0, columns - 1)).expand(-1, slots, -1)
    dstd = std[:, None, [0, 1, 1, 1][:columns]].expand(-1, slots, -1)
    return {"davg": array(davg, precision), "dstd": array(dstd, precision)}


def mean_in_words(options: Iterable[Any]) -> str:
    """Why the environment matrix has a mean that is not zero, with these options."""
    stated = [
        getattr(one, "set_davg_zero", None)
        for outer in options
        for one in (outer, *(vars(outer).values() if isinstance(outer, Options) else ()))
    ]
    return "`set_davg_zero` is false" if False in stated else "its davg is not zero"


class EnvironmentDescriptor(Descriptor):
    """Base of descriptors of the normalised rows R of the environment matrix, whose `options` have rcut, rcut_smth,
    sel, exclude_types, env_protection and set_davg_zero.

    Attributes:
        mean: (ntypes,), of the rows' first entry, by the centre's type.
        std: (ntypes, 2), of the first entry and the others.
        excluded: (ntypes, ntypes) bool, `exclude_types`: pairs whose rows are zero. They still take their places among
            the `sel`, unlike pairs that a model has as absent (`Neighborhood.absent_pairs`); the two differ where the
            mean is not zero.
    """

    mean: torch.Tensor
    std: torch.Tensor
    excluded: torch.Tensor
    columns: ClassVar[int] = 4  # of R in the statistics; 1 if only distances are used

    def __init__(self, options: Any, type_map: Sequence[str], mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("excluded", pair_matrix(options.exclude_types, len(self.type_map)))

    @property
    def ntypes(self) -> int:
        return len(self.type_map)

    @property
    def sel(self) -> list[int]:
        """Places of neighbours of each type, or of all types."""
        return list(self.options.sel) if isinstance(self.options.sel, list) else [self.options.sel]

    @property
    def slots(self) -> int:
        """N_sel, all places."""
        return sum(self.sel)

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        places = (self.slots,) if self.mixed else tuple(self.sel)
        return (NeighborSpec(self.options.rcut, places, self.mixed),)

    @property
    def cutoff_smooth(self) -> float:
        """The start of the switch, A."""
        return self.options.rcut_smth

    @property
    def protection(self) -> float:
        """Added to distances in denominators, A."""
        return self.options.env_protection

    def excludes(self, near: Neighborhood) -> torch.Tensor:
        """(N, K) bool: neighbours with zero rows by `exclude_types`."""
        return nn.functional.pad(self.excluded, (0, 1))[near.centers[:, None], near.neighbor_types]

    @staticmethod
    def no_statistics(ntypes: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """mean and std of a new descriptor."""
        return torch.zeros(ntypes, dtype=dtype), torch.ones(ntypes, 2, dtype=dtype)

    def learn_statistics(self, frames: Iterable[Neighborhood], absent: Sequence[Sequence[int]]) -> None:
        found = environment_statistics(
            frames,
            ntypes=self.ntypes,
            sel=self.sel,
            mixed=self.mixed_types,
            cutoff_smooth=self.cutoff_smooth,
            protection=self.protection,
            exclude_types=[*self.options.exclude_types, *absent],
        )
        self.set_statistics(found.mean, found.std)

    @torch.no_grad()
    def set_statistics(self, mean: np.ndarray, std: np.ndarray) -> None:
        """Takes mean (ntypes,) and std (ntypes, 2) of the data's rows."""
        self.mean.copy_(torch.zeros_like(self.mean) if self.options.set_davg_zero else torch.from_numpy(mean))
        self.std.copy_(torch.from_numpy(std))

    @classmethod
    def statistics_of_tree(cls, tree: Tree, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """mean and std from davg and dstd (ntypes, N_sel, columns).

        DeePMD-kit stores them for every slot, but computes one value a type, one deviation for x, y and z, and a
        mean of zero for these. Only such models are rotation invariant and can take padding in closed form.
        """
        davg, dstd = tree["@variables"]["davg"], tree["@variables"]["dstd"]
        mean, std = davg[:, 0, 0], dstd[:, 0, [0, min(1, dstd.shape[2] - 1)]]
        same_mean = (davg[:, :, 0] == mean[:, None]).all() and (davg[:, :, 1:] == 0).all()
        same_std = (dstd == std[:, [0, 1, 1, 1][: dstd.shape[2]]][:, None]).all()
        if not (same_mean and same_std):
            raise UnsupportedModelError(
                "davg or dstd differs between the slots of a type or between x, y and z; supported are "
                "the statistics that DeePMD-kit computes, one value for all of them"
            )
        return tensor(mean, dtype), tensor(std, dtype)

    def statistics_to_tree(self) -> Tree:
        """The arrays davg and dstd."""
        precision = saved_precision(self.options.precision)
        return statistics_arrays(self.mean, self.std, self.slots, precision, self.columns)

    def head(self, version: int) -> Tree:
        """The node's keys except nets and arrays."""
        o = self.options
        return {
            "@class": "Descriptor",
            "@version": version,
            "type": o.KIND,
            **o.to_tree(),
            "env_mat": environment_node(vars(o)),
            "type_map": list(self.type_map),
            "@variables": self.statistics_to_tree(),
        }

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        if not cls.mixed:
            return super().tree_of_types(tree, types, type_map)
        arrays = {
            name: value[list(types)] for name, value in tree["@variables"].items() if name in ("davg", "dstd")
        }
        nets: Tree = {
            name: {**tree[name], "ntypes": len(types)}
            for name in ("embeddings", "embeddings_strip")
            if name in tree
        }
        return {
            **tree,
            **nets,
            "type_map": list(type_map),
            "ntypes": len(types),
            "exclude_types": renumbered(tree["exclude_types"], types),
            "@variables": {**tree["@variables"], **arrays},
        }

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        ntypes = len(type_map)
        sel = tree["sel"] if isinstance(tree["sel"], list) else [tree["sel"]]
        if not cls.mixed:
            require_same(len(sel), ntypes, f"the length of {place}.sel")
        if not sum(sel) or not tree["neuron"] or tree["rcut_smth"] > tree["rcut"]:
            raise ModelFileError(f"{place} has no neighbours, no layers, or rcut_smth > rcut")
        check_type_map(tree, type_map, place)
        if "env_mat" in tree:
            found = tree["env_mat"]["rcut"], tree["env_mat"]["rcut_smth"]
            require_same(found, (tree["rcut"], tree["rcut_smth"]), f"{place}.env_mat")
        check_pairs(tree["exclude_types"], ntypes, f"{place}.exclude_types")
        check_statistics(tree["@variables"], (ntypes, sum(sel), cls.columns), place)
        for name in ("embeddings", "embeddings_strip"):
            if name in tree:
                cls.check_nets(tree, name, ntypes, place)

    @classmethod
    def check_nets(cls, tree: Tree, name: str, ntypes: int, place: str) -> None:
        """Check the nets that a node has under that name. Raises ModelFileError."""
        check_collection(tree[name], tree, cls.net_types_of_tree(tree), ntypes, f"{place}.{name}")

    @classmethod
    def net_types_of_tree(cls, tree: Tree) -> int:
        """The number of types that index embedding nets of a node: 0 (one net for all), 1 or 2."""
        return 0

    @classmethod
    def width_of_tree(cls, tree: Tree) -> int | None:
        width: int = tree["neuron"][-1] * tree.get("axis_neuron", 1)
        return width + (tree["tebd_dim"] if tree.get("concat_output_tebd") else 0)

    def summary_lines(self, nets: NetCollection) -> dict[str, str]:
        """Lines of `summary`: places, switch, and these embedding nets."""
        layers = nets.nets[0].described
        places = ", ".join(f"{t} {n}" for t, n in zip(self.type_map, self.sel, strict=True))
        return {
            "sel": f"{self.slots} of all types" if self.mixed else places,
            "switch": f"from {self.cutoff_smooth:g} A",
            "embedding nets": f"{len(nets)} of {layers}",
        }

    @staticmethod
    def refuse_unsupported(tree: Tree) -> None:
        """Raises UnsupportedModelError for DeePMD-kit's descriptor options that no kind supports."""
        if tree.get("spin") is not None:
            raise UnsupportedModelError("a model with spin is not supported")
        if (tree.get("env_mat") or {}).get("use_exp_switch"):
            raise UnsupportedModelError(
                f"{tree['type']} with `use_exp_switch` is not supported; the polynomial switch is"
            )


class TypedDescriptor(EnvironmentDescriptor):
    """Base of descriptors with places for each type and nets by types.

    Attributes:
        embeddings: the nets.
    """

    def __init__(
        self,
        options: Any,
        type_map: Sequence[str],
        mean: torch.Tensor,
        std: torch.Tensor,
        embeddings: NetCollection,
    ) -> None:
        super().__init__(options, type_map, mean, std)
        self.embeddings = embeddings

    @classmethod
    def net_types(cls, options: Any) -> int:
        """How many types index a net: 1, or 2."""
        return 1 if options.type_one_side else 2

    @classmethod
    def net_types_of_tree(cls, tree: Tree) -> int:
        return cls.net_types(cls.Options.from_tree(tree))

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> Self:
        cls.refuse_unsupported(tree)
        options, nets = cls.Options.from_tree(tree), NetCollection.from_tree(tree["embeddings"], dtype)
        return cls(options, type_map, *cls.statistics_of_tree(tree, dtype), nets)

    def to_tree(self) -> Tree:
        precision = saved_precision(self.options.precision)
        return {**self.head(2), "embeddings": self.embeddings.to_tree(precision, self.options.resnet_dt)}

    @classmethod
    def random(cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> Self:
        ntypes, widths = len(type_map), [1, *options.neuron]
        nets = NetCollection.random(
            widths, options, ndim=cls.net_types(options), ntypes=ntypes, seed=seed, dtype=dtype
        )
        return cls(options, type_map, *cls.no_statistics(ntypes, dtype), nets)


# The keys of a fitting's input; nodes may keep more.
_INPUT_KEYS = (
    "type", "neuron", "resnet_dt", "numb_fparam", "numb_aparam", "dim_case_embd", "default_fparam",
    "activation_function", "precision", "trainable", "use_aparam_as_mask", "atom_ener",
)  # fmt: skip


class Fitting(ModelComponent):
    """Maps a descriptor's features of each atom to its outputs.

    Attributes:
        outputs: its outputs.
        needs_axes: whether `forward` takes the argument `axes`, of `Features`.
        LOSS: the default section `loss` of a training; empty: that of energies.
    """

    outputs: tuple[Output, ...] = (ENERGY,)
    needs_axes: ClassVar[bool] = False
    LOSS: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        """The outputs with these options."""
        return cls.outputs

    @classmethod
    def for_axes(cls, options: Any, axes: int) -> Any:
        """The options of a new fitting on a descriptor with so many axes, from those of an input."""
        return options

    def with_statistics(
        self, value: torch.Tensor, kinds: torch.Tensor, bias: torch.Tensor, std: torch.Tensor
    ) -> torch.Tensor:
        """The first output (N, *shape) of atoms of these types (N,) int64, with the model's bias and deviation."""
        return value + bias[kinds]

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], width: int | None, place: str) -> None:
        """Raises ModelFileError for a node of `NODE` whose parts do not fit each other, the types, or a descriptor of
        that width (None: it is not known)."""

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        return {name: tree[name] for name in _INPUT_KEYS if name in tree}


def masks(options: Any) -> bool:
    """Whether a model, or a descriptor, with these options takes atomic parameters as `AtomicModel.masks` says."""
    parts = [getattr(options, "descriptor", None), *getattr(options, "models", [])]
    return getattr(options, "masks", False) or any(masks(part) for part in parts if part is not None)


class AtomicModel(ModelComponent, ABC):
    """A model with outputs for each atom.

    Attributes:
        type_map: the element of each type.
        outputs: its outputs.
        out_bias: (ntypes, *shape) float64: added to the first output of each atom, by its type.
        out_std: the same, the deviation of the training data; DeePMD-kit keeps it.
        has_energy: (ntypes,) bool, False for `atom_exclude_types`: their atoms have no energy, but are
            neighbours of others.
        absent_pairs: (ntypes, ntypes) bool, `pair_exclude_types`: no neighbours of each other; None: no pairs.
        heads: those that predict in place of the fitting, if a loss of `ModelOptions.HEADS` trained them; None: it
            predicts. Only kinds with HEADS have the attribute.
    """

    heads: Any
    outputs: tuple[Output, ...] = (ENERGY,)
    out_bias: torch.Tensor
    out_std: torch.Tensor
    has_energy: torch.Tensor
    absent_pairs: torch.Tensor | None

    def __init__(
        self, options: Any, type_map: Sequence[str], out_bias: torch.Tensor, out_std: torch.Tensor
    ) -> None:
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        ntypes = len(self.type_map)
        silent = set(options.atom_exclude_types)
        absent = pair_matrix(options.pair_exclude_types, ntypes) if options.pair_exclude_types else None
        self.register_buffer("out_bias", out_bias)
        self.register_buffer("out_std", out_std)
        self.register_buffer("has_energy", torch.tensor([t not in silent for t in range(ntypes)]))
        self.register_buffer("absent_pairs", absent)

    @property
    def ntypes(self) -> int:
        return len(self.type_map)

    @property
    @abstractmethod
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        """The capacity of each part for neighbours."""

    @property
    def cutoff(self) -> float:
        """The largest, A."""
        return max(spec.cutoff for spec in self.neighbors)

    @property
    def reach(self) -> int:
        """See `Descriptor.reach`."""
        return max((one.reach for one in self.descriptors), default=1)

    @property
    def spin(self) -> Spin | None:
        """How spins make virtual atoms; None for a model without spins."""
        return None

    @property
    def elements(self) -> list[str]:
        """The type map without the types of virtual atoms."""
        return self.type_map[: None if self.spin is None else self.spin.ntypes]

    @property
    def mixed_types(self) -> bool:
        """Whether neighbours of all types share places and weights, as parts of a blend must."""
        return False

    def adapt(self) -> list[nn.Parameter]:
        """Sets which weights are trained beside low-rank adapters; returns those that get adapters, (.., inputs,
        outputs).

        Raises ConfigError if the kind has no adapters."""
        raise ConfigError(f"model.lora: a model of type {self.kind} has no adapters: leave the section out")

    @property
    def keeps_deviation(self) -> bool:
        """Whether a new fit of `out_bias` leaves `out_std`, by which results are multiplied."""
        return False

    @property
    def parts(self) -> "list[AtomicModel]":
        """Itself, or the parts of a blend."""
        return [self]

    @property
    def captures(self) -> bool:
        """Whether its passes never wait for a GPU, so that a CUDA graph can have them."""
        return False

    def takes_matmul(self, matmul: str) -> bool:
        """See `Descriptor.takes_matmul`."""
        return False

    def graph_sizes(self, within: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """See `Descriptor.graph_sizes`."""
        return None

    @property
    def absent_matrix(self) -> torch.Tensor:
        """(ntypes, ntypes) bool: `absent_pairs`, all False if None."""
        n = self.ntypes
        return self.has_energy.new_zeros(n, n) if self.absent_pairs is None else self.absent_pairs

    @property
    def counted_bias(self) -> torch.Tensor:
        """(ntypes,) float64: `out_bias`, 0 for types that have no energy."""
        return torch.where(self.has_energy, self.out_bias.double(), 0.0)

    @property
    def shortest(self) -> float:
        """A; for shorter distances the model gives NaN, and the potential raises an error."""
        return 0.0

    def short_pairs(self, near: Neighborhood) -> torch.Tensor:
        """(P, 2) int64: atoms of `near` and their neighbours nearer than `shortest`."""
        near = near.within(min(near.cutoff, self.cutoff)).without(self.absent_pairs)
        short = (near.squared < self.shortest**2) & (near.neighbor_types != near.ntypes)
        atom, slot = short.nonzero(as_tuple=True)
        return torch.stack([atom, near.neighbors[atom, slot].long()], dim=1)

    @property
    def dtype(self) -> torch.dtype:
        """The compute dtype, that of weights and pair vectors."""
        return next(self.parameters()).dtype

    @property
    def masks(self) -> bool:
        """Whether an atom's only parameter is a mask: atoms with 0 are in no neighbour list."""
        return masks(self.options)

    @property
    def parameter_sizes(self) -> dict[str, int]:
        """How many frame parameters ("fparam") and atomic parameters ("aparam") it takes."""
        return {"fparam": 0, "aparam": 0}

    @property
    def default_parameters(self) -> set[str]:
        """Those of "fparam" and "aparam" that are optional."""
        return set()

    def set_parameter_statistics(self, found: Mapping[str, tuple[np.ndarray, np.ndarray] | None]) -> None:
        """Takes averages and inverse deviations of the data's "fparam" and "aparam", where the model has them."""

    def follow(self, options: Any, seed: int) -> None:
        """Gets the heads that a training with these options of an input trains, if it was trained with others."""

    def atoms_at_once(self, near: Neighborhood) -> int | None:
        """See `Descriptor.atoms_at_once`."""
        return None

    @property
    def descriptors(self) -> list[Descriptor]:
        """Those of all parts, for statistics of the data."""
        return []

    @property
    def with_averages(self) -> "list[AtomicModel]":
        """The parts whose `out_bias` and `out_std` a new model fits to labels."""
        return [self]

    def forward(
        self, near: Neighborhood, fparam: torch.Tensor | None = None, aparam: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """`atom_<name>` (N, *shape), float64, of each output; zero for virtual atoms and types that have none.

        Args:
            near: of a list that holds all within `cutoff`.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,).

        Raises:
            InputError: a parameter is missing, has another shape, or is not one that the model takes.
        """
        near = near.within(min(near.cutoff, self.cutoff)).without(self.absent_pairs)
        return self.finish(self.atomic_outputs(near, fparam, aparam), near.types, near.centers)

    def finish(
        self, responses: dict[str, torch.Tensor], types: torch.Tensor, kind: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """The result of `forward` from `atomic_outputs`'s; `kind`: `Neighborhood.centers`, if known."""
        kind = types.long().clamp(min=0) if kind is None else kind
        left_out = ~self.has_energy[kind] | (types < 0)
        result = {}
        for output in self.outputs:
            value = responses[output.name]
            if output is self.outputs[0]:
                value = self.with_statistics(value, kind)
            mask = left_out.view(-1, *(1 for _ in output.shape))
            result[output.atom_name] = value.masked_fill(mask, 0.0)
        return result

    def with_statistics(self, value: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        """The first output (N, *shape) of atoms of these types (N,) int64, with `out_bias`."""
        return value + self.out_bias[kinds]

    @abstractmethod
    def atomic_outputs(
        self, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        """(N, *shape) of each output by its name, float64, without `out_bias`; arguments as of `forward`."""

    def describe(self, near: Neighborhood) -> torch.Tensor:
        """(N, D): the descriptor's numbers; `near` as of `forward`. Raises UnsupportedModelError unless there is one
        descriptor."""
        raise UnsupportedModelError(f"a {self.kind} model has no descriptor of its own")

    def reject_unused_parameters(self, fparam: torch.Tensor | None, aparam: torch.Tensor | None) -> None:
        """Raises InputError for parameters that the model does not take."""
        for name, value in (("fparam", fparam), ("aparam", aparam)):
            if value is not None and not self.parameter_sizes[name]:
                raise InputError(f"{name} is given, but the model takes none")

    @classmethod
    @abstractmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> Self:
        """Raises UnsupportedModelError for a part or an option that is not implemented."""

    @classmethod
    @abstractmethod
    def random(cls, options: Any, seed: int, dtype: torch.dtype) -> Self:
        """A new one, before training; every `sel` is known."""

    @classmethod
    def outputs_of(cls, options: Any) -> tuple[Output, ...]:
        """The outputs with these options of an input."""
        return cls.outputs

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        """As in `ModelComponent`; by default only the type map and what it leaves out."""
        shared = "type_map", "atom_exclude_types", "pair_exclude_types"
        return {key: tree[key] for key in shared if tree.get(key)}

    @classmethod
    def check_tree(cls, tree: Tree, place: str) -> None:
        """Raises ModelFileError for a node of `NODE` whose parts do not fit each other."""
        type_map, ntypes = tree["type_map"], len(tree["type_map"])
        if not ntypes or len(set(type_map)) != ntypes:
            raise ModelFileError(f"{place}.type_map should name each type once, and is {type_map}")
        check_types(tree["atom_exclude_types"], ntypes, f"{place}.atom_exclude_types")
        check_pairs(tree["pair_exclude_types"], ntypes, f"{place}.pair_exclude_types")
        for name in MODEL_ARRAYS:
            shape = tree["@variables"][name].shape
            if len(shape) != 3 or shape[1] != ntypes:
                raise ModelFileError(
                    f"{place}.@variables.{name} has shape {shape}, not (outputs, {ntypes}, width)"
                )

    def head(self, version: int) -> Tree:
        """The node's keys, except its parts'."""
        return {
            "@class": "Model",
            "@version": version,
            "type": self.options.KIND,
            "type_map": list(self.type_map),
            "rcond": None,
            **self.options.to_tree(),
            "@variables": self.variables_to_tree(),
        }

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        """As in `ModelComponent`, without the nodes of its parts."""
        preset = tree["preset_out_bias"] or {}
        return {
            **tree,
            "type_map": list(type_map),
            "pair_exclude_types": renumbered(tree["pair_exclude_types"], types),
            "atom_exclude_types": renumbered(tree["atom_exclude_types"], types),
            "preset_out_bias": {k: of and [of[t] for t in types] for k, of in preset.items()} or None,
            "@variables": {name: value[:, list(types)] for name, value in tree["@variables"].items()},
        }

    @staticmethod
    def variables_of_tree(tree: Tree, shape: Sequence[int] = ()) -> tuple[torch.Tensor, torch.Tensor]:
        """out_bias and out_std for a first output of that shape. Raises ModelFileError for other shapes."""
        found = []
        for name in MODEL_ARRAYS:
            values = tree["@variables"][name]
            if values.shape[2] != math.prod(shape):
                raise ModelFileError(
                    f"the model's {name} has {values.shape[2]} values a type, and its output {math.prod(shape)}"
                )
            found.append(tensor(values, torch.float64)[0].reshape(-1, *shape))
        return found[0], found[1]

    def variables_to_tree(self) -> Tree:
        return {name: array(getattr(self, name).reshape(1, self.ntypes, -1)) for name in MODEL_ARRAYS}
