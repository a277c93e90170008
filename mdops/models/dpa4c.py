"""The descriptor dpa4c: DPA-4C, invariants of sums over neighbours of spherical harmonics."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from mdops.errors import DataError, ModelFileError, UnsupportedModelError
from mdops.models import schema
from mdops.models.contract import Descriptor, Features, Tree, renumbered
from mdops.models.environment import in_chunks
from mdops.models.keys import excluded_pairs_key, precision_key, seed_key
from mdops.models.moment_invariants import MomentInvariants, degree_channels, invariants_width, probe_ranks
from mdops.models.neighborhood import Neighborhood, NeighborSpec, pair_matrix
from mdops.models.registry import register
from mdops.models.rows import pair_kinds, rows_in, table_rows
from mdops.models.shapes import check_layer, check_pairs, require_same
from mdops.models.spin_invariants import MomentTables, SpinInvariants, neighbor_lines, spin_width
from mdops.models.ways import SumsBySplines, way_of
from mdops.nn.net import array, tensor
from mdops.nn.swiglu import SwiGLU, hidden_width, random_product
from mdops.ops import harmonic_rows, neighbor_rows, row_moments
from mdops.ops.linear import linear
from mdops.options import Options, key, saved_precision
from mdops.options import check_pairs as check_option_pairs
from mdops.tracing import is_exported

CHANNELS, DEGREES = (8, 16, 32, 64, 128), (2, 3, 4)
BASES = ("bessel", "gaussian")
_EXPONENT, _PAIR_SCALE, _FLOOR = 5, 0.1, 0.25
_SMALLEST = 1e-12  # the least deviation to divide by
# The size of a run of atoms in simulations: its rows stay in a CPU's cache; on a GPU, the numbers of its largest
# tensor.
_ATOMS_IN_CACHE, _NUMBERS_ON_GPU = 64, 7 * 2**25
_SLOTS_IN_CACHE, _SLOTS_ON_GPU = 2**15, 2**28  # by splines, which need less memory per slot
_SPIN = "the section `spin` of the model says which types have moments"
_CHARGE = "an embedding of charge and multiplicity is not supported for dpa4c"


@dataclass(kw_only=True)
class DPA4COptions(Options):
    KIND = "dpa4c"
    NEUTRAL: ClassVar[dict[str, Any]] = {
        **dict.fromkeys(("use_spin", "spin", "default_chg_spin")),
        "add_chg_spin_ebd": False,
    }
    ADVICE: ClassVar[dict[str, str]] = {
        "use_spin": _SPIN,
        "spin": _SPIN,
        "add_chg_spin_ebd": _CHARGE,
        "default_chg_spin": _CHARGE,
    }
    UNUSED: ClassVar[dict[str, tuple[Any, ...]]] = {"use_amp": (False,)}

    rcut: float = key(6.0, "the cutoff", unit="A", above=0, implied=..., absent=...)
    channels: int = key(32, "number of sums without a direction", choices=CHANNELS)
    lmax: int = key(2, "the highest degree of the harmonics", choices=DEGREES)
    basis_type: str = key("bessel", "type of the functions of the distance", choices=BASES)
    n_radial: int = key(16, "number of functions of the distance", low=1)
    radial_modes: int = key(
        0, "number of additional functions of the distance, which each pair of types mixes", low=0
    )
    exclude_types: list[list[int]] = excluded_pairs_key()
    precision: str = precision_key("float32", absent="float64", implied="float64")
    trainable: bool = key(True, "whether the weights are trained", of="training")
    use_spin: list[bool] | None = key(None, "for each type whether its atoms have a moment", where="file")
    seed: int | None = seed_key(where="input")

    @property
    def cutoff(self) -> float:
        return self.rcut

    def check(self, place: str, type_map: Sequence[str]) -> None:
        check_option_pairs(self.exclude_types, len(type_map), f"{place}.exclude_types")

    @property
    def moment_channels(self) -> int:
        """C_2, the channels of the radial functions of magnetic moments; 0 without moments."""
        return 0 if self.use_spin is None else degree_channels(self.channels, self.lmax)[2]

    @property
    def hidden(self) -> int:
        """H, the width after the radial net's gate."""
        return hidden_width(self.channels)

    @property
    def radial_widths(self) -> list[int]:
        """The widths of the radial net."""
        return [self.n_radial, self.hidden, self.channels]

    @property
    def pair_widths(self) -> list[int]:
        """The widths of the net of pairs of types."""
        inputs = 2 * self.channels
        outputs = self.channels * (2 + self.radial_modes) + 2 * self.moment_channels
        return [inputs, hidden_width(inputs), outputs]


class PairTables(NamedTuple):
    """How a pair of types changes the radial functions: rows a * ntypes + b for centres a and neighbours b.

    Attributes:
        scale, shift: (ntypes^2, channels); mixing: (ntypes^2, channels * radial_modes), the mode fastest.
        moments: the same for magnetic moments; None without.
    """

    scale: torch.Tensor
    shift: torch.Tensor
    mixing: torch.Tensor
    moments: MomentTables | None


class Moments(NamedTuple):
    """Sums over the neighbours of N atoms.

    Attributes:
        degrees: (N, 2 l + 1, C_l) for l = 0 to lmax, divided.
        divisors: (N, 2), first that of degree 0.
        magnetic: (N, 13, C_2), of magnetic moments, divided like degrees above 0; None without.
    """

    degrees: list[torch.Tensor]
    divisors: torch.Tensor
    magnetic: torch.Tensor | None = None

    @classmethod
    def of_sums(
        cls, sums: Sequence[torch.Tensor], masses: torch.Tensor, magnetic: torch.Tensor | None = None
    ) -> "Moments":
        """Divides sums like `degrees` and `magnetic`; masses: (N, 2), sums of chi^2 and chi^4."""
        divisors = (masses + _FLOOR).sqrt()
        of_degree = divisors[:, :1, None], divisors[:, 1:, None]
        degrees = [x / of_degree[degree > 0] for degree, x in enumerate(sums)]
        return cls(degrees, divisors, None if magnetic is None else magnetic / of_degree[1])


class Weights(NamedTuple):
    """The arrays of a descriptor in files: constants of the data, E and a row of zeros, the radial basis, W_0 and W_1
    of the radial net and of the net of pairs, the product for q, those of the invariants, and with magnetic moments the
    arrays of `SpinInvariants`."""

    mean: np.ndarray
    stddev: np.ndarray
    type_embedding: np.ndarray
    frequencies: np.ndarray
    radial: Sequence[np.ndarray]
    pairs: Sequence[np.ndarray]
    modes: np.ndarray | None
    alignment: Sequence[np.ndarray]
    probes: Sequence[np.ndarray | None]
    spin: Mapping[str, np.ndarray] | None = None


def envelope(r: torch.Tensor, cutoff: float) -> torch.Tensor:
    """chi of distances in A: 1 at 0 and 0 at the cutoff, with three derivatives of zero there."""
    x = r / cutoff
    return (1 - x).clamp(min=0.0) ** 4 * (1 + x * (4 + x * (10 + x * (20 + x * 35))))


_VARIABLES = {"mean": True, "stddev": True}
# The arrays of `SpinInvariants` in files, and of its net of pairs. The first three have a row for padding.
_OF_SPIN = {
    "reference": "spin_reference",
    "vector_weight": "adam_spin_vector_weight",
    "tensor_weight": "adam_spin_quadrupole_weight",
    "gate": "spin_gate",
}
_OF_PAIRS = {"scale_anchor": "adam_spin_scale_anchor", "shift_anchor": "adam_spin_shift_anchor"}


@register
class DPA4C(SumsBySplines, Descriptor):
    """D_i = ((invariants of X, (d_0 + 1/4)^1/2, (d_1 + 1/4)^1/2, E_a) - mean) / stddev, of an atom of type a, with

        X_0 = n_0 sum_j chi F(r_j),    X_l = n_1 sum_j chi^2 F(r_j) B_l(r_j / |r_j|) for l >= 1, n = (d + 1/4)^-1/2,
        d_0 = sum_j chi^2,    d_1 = sum_j chi^4,    F = gamma_ab g(r) + beta_ab + U_ab q(r),
        [gamma - 1, beta - E_a - E_b, U] = tanh of the net of pairs on [E_a, E_b],

    chi (`envelope`), harmonics B_l with B_l . B_l = 1, g and q the radial net's outputs. The leading C_l channels of F
    belong to degree l. Source: DeePMD-kit 3.2.0, "DPA4C".

    With magnetic moments, their invariants (`SpinInvariants`) follow those of X. Their sums, divided like X_1, have the
    radial functions chi^2 (gamma'_ab g(r) + beta'_ab) of the first C_2 channels of g. A gate multiplies these
    invariants after the statistics.

    Attributes:
        mean, stddev: (width,), constants of the training's data.
        excluded: (ntypes, ntypes) bool, `exclude_types`.
        type_embedding: E (ntypes, channels); frequencies: (n_radial,), of the Bessel functions, 1/A, or the
            Gaussians' centres, A.
        radial, modes, pairs, invariants: the radial net, the product for q (None without modes), the net of pairs of
            types, and the invariants of the sums.
        spin: the invariants of magnetic moments; None without.
    """

    Options = DPA4COptions
    NODE = schema.Node(
        {
            "ntypes": (schema.count, None),
            "type_map": schema.type_map,
            "seed": (schema.anything, None),
            "add_chg_spin_ebd": (schema.boolean, False),
            "default_chg_spin": (schema.anything, None),
            "spin": (schema.anything, None),
            "spin_channels": (schema.optional(schema.node), None),
            "charge_spin_embedding": (schema.optional(schema.node), None),
            "type_embedding": schema.part,
            "radial_basis": schema.part,
            "radial_embedding": schema.part,
            "radial_mode_head": (schema.optional(schema.node), None),
            "pair_film": schema.part,
            "readout": schema.part,
            "compress": (schema.anything, None),
            "@variables": schema.part,
        },
        _VARIABLES,
    )
    NODES: ClassVar[dict[str, schema.Node]] = {
        "SeZMTypeEmbedding": schema.Node(
            {"config": schema.part, "@variables": schema.part}, {"adam_type_embedding": True}
        ),
        "RadialBasis": schema.Node({"config": schema.part, "@variables": schema.part}, {"adam_freqs": True}),
        "SwiGLUMLP": schema.Node(
            {
                "mlp_layers": (schema.list_of(schema.count), schema.REQUIRED),
                "output_scale": (schema.number, 1.0),
                "precision": schema.precision,
                "trainable": (schema.boolean, True),
                "@variables": schema.part,
            }
        ),
        "OrderedPairFiLM": schema.Node(
            {
                "channels": (schema.count, schema.REQUIRED),
                "radial_modes": (schema.count, 0),
                "spin_channels": (schema.count, 0),
                "precision": schema.precision,
                "trainable": (schema.boolean, True),
                "network": schema.part,
                "@variables": (schema.node, {}),
            }
        ),
        "SpinChannels": schema.Node(
            {
                "ntypes": (schema.count, schema.REQUIRED),
                "degree_channels": (schema.list_of(schema.count), schema.REQUIRED),
                "use_spin": (schema.list_of(schema.boolean), schema.REQUIRED),
                "precision": schema.precision,
                "trainable": (schema.boolean, True),
                "@variables": schema.part,
            },
            dict.fromkeys(_OF_SPIN.values(), True),
        ),
        "InvariantReadout": schema.Node(
            {
                "channels": (schema.count, schema.REQUIRED),
                "lmax": (schema.count, schema.REQUIRED),
                "precision": schema.precision,
                "trainable": (schema.boolean, True),
                "channel_alignment": (schema.list_of(schema.node), schema.REQUIRED),
                "probe_projections": (schema.list_of(schema.optional(schema.node)), schema.REQUIRED),
            }
        ),
    }
    TABLES: ClassVar[tuple[str, ...]] = ("type_embedding",)
    mixed: ClassVar[bool] = True

    mean: torch.Tensor
    stddev: torch.Tensor
    excluded: torch.Tensor
    no_mean: torch.Tensor
    no_std: torch.Tensor

    def __init__(
        self,
        options: DPA4COptions,
        type_map: Sequence[str],
        statistics: tuple[torch.Tensor, torch.Tensor],
        type_embedding: torch.Tensor,
        frequencies: torch.Tensor,
        nets: tuple[SwiGLU, torch.Tensor | None, SwiGLU],
        invariants: MomentInvariants,
        spin: SpinInvariants | None = None,
    ) -> None:
        """Takes the radial net, the product for q or None, and the net of pairs of types as `nets`."""
        super().__init__()
        self.options, self.type_map = options, list(type_map)
        self.type_embedding, self.frequencies = nn.Parameter(type_embedding), nn.Parameter(frequencies)
        self.radial, modes, self.pairs = nets
        self.modes = None if modes is None else nn.Parameter(modes)
        self.invariants, self.spin = invariants, spin
        for name, value in zip(("mean", "stddev"), statistics, strict=True):
            self.register_buffer(name, value)
        ntypes = len(self.type_map)
        self.register_buffer("excluded", pair_matrix(options.exclude_types, ntypes))
        # Unscaled rows of the environment matrix, for `harmonic_rows`.
        plain = torch.zeros(ntypes, dtype=frequencies.dtype), torch.ones(ntypes, 2, dtype=frequencies.dtype)
        for name, value in zip(("no_mean", "no_std"), plain, strict=True):
            self.register_buffer(name, value, persistent=False)

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return (NeighborSpec(self.options.rcut, None, True),)

    @property
    def width(self) -> int:
        return self.measured + self.options.channels

    @property
    def measured(self) -> int:
        """How many of the features have statistics."""
        return self.invariants.width + (0 if self.spin is None else self.spin.width) + 2

    @property
    def ntypes(self) -> int:
        return len(self.type_map)

    captures = True

    @property
    def why_no_splines(self) -> str | None:
        """Why splines cannot replace the radial nets; None: they can."""
        return None if self.spin is None else "there are no splines of sums with magnetic moments"

    is_local = True

    def atoms_at_once(self, near: Neighborhood) -> int | None:
        if is_exported() or self.spin is not None:  # its gradients are by all atoms' moments
            return None
        on_cpu, slots = near.displacements.device.type == "cpu", max(1, near.neighbors.shape[1])
        if way_of(self) is not None:
            return max(1, (_SLOTS_IN_CACHE if on_cpu else _SLOTS_ON_GPU) // slots)
        return _ATOMS_IN_CACHE if on_cpu else max(1, _NUMBERS_ON_GPU // (slots * 2 * self.options.hidden))

    def forward(self, near: Neighborhood) -> Features:
        given = way_of(self)
        return self.scaled(self.raw(near)) if given is None else Features(given.make(near))

    def scaled(self, raw: torch.Tensor) -> Features:
        """The features, from the results of `described`."""
        found = (raw - self.mean) / self.stddev
        if self.spin is not None:
            widths = [self.invariants.width, self.spin.width, 2 + self.options.channels]
            before, magnetic, behind = found.split(widths, 1)
            found = torch.cat([before, magnetic * self.spin.gate, behind], 1)
        return Features(found)

    def raw(self, near: Neighborhood) -> torch.Tensor:
        """(N, width), before the statistics are applied."""
        tables = self.pair_tables()
        atoms, slots = near.neighbors.shape
        spins = None if self.spin is None else self.spin.moments(near.system.spins, near.centers)

        def of_atoms(run: slice) -> torch.Tensor:
            sums = self.moments(near.of_atoms(run), tables, spins)
            return self.described(sums, near.centers[run], None if spins is None else spins[run])

        if near.first_derivative_only:  # the evaluator has split it into runs
            return of_atoms(slice(None))
        return in_chunks(of_atoms, atoms, slots * 2 * self.options.hidden)

    def described(
        self, moments: Moments, centers: torch.Tensor, spins: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(N, width), from the sums, the atoms' types (N,) and their magnetic moments (N, 3)."""
        found = [self.invariants(moments.degrees)]
        if self.spin is not None:
            found.append(self.spin(moments.magnetic, spins, centers, moments.degrees[2]))
        return torch.cat([*found, moments.divisors, table_rows(self.type_embedding, centers)], dim=1)

    def moments(self, near: Neighborhood, tables: PairTables, spins: torch.Tensor | None = None) -> Moments:
        """The sums; spins: (N, 3), of all atoms to which indices of `near` refer."""
        absent = self.excluded if near.absent_pairs is None else self.excluded | near.absent_pairs
        listed = near.counts, near.types
        pairs = near.displacements.detach()
        found = neighbor_rows(pairs, *listed, cutoff=self.cutoff, pair_mask=absent)
        atoms, slots = near.neighbors.shape
        room = atoms * slots if near.max_pairs is None else torch.sym_min(atoms * slots, near.max_pairs)
        count = rows_in(found.offsets, room)
        # Twice the cutoff, so that the switch is 1 for all neighbours.
        rows = harmonic_rows(
            near.displacements,
            found.slots,
            *listed,
            self.no_mean,
            self.no_std,
            cutoff=2 * self.cutoff,
            cutoff_smooth=self.cutoff,
            rows=count,
            degree=self.options.lmax,
        )
        inverse = rows[:, :1]
        r = 1 / torch.where(inverse > 0, inverse, 1 / self.cutoff)
        chi = envelope(r, self.cutoff)
        kinds, radial = pair_kinds(near, found.slots[:count]), self.radial_functions(r)
        amplitude = self.amplitude(radial, kinds, tables)
        squared = chi.square()
        masses = row_moments(squared, torch.cat([torch.ones_like(chi), squared], 1), found.offsets)[:, 0]
        harmonics = rows[:, 1:] * (r * squared)
        sums = [row_moments(chi, amplitude, found.offsets)]
        for degree, width in enumerate(self.invariants.channels[1:], 1):
            own = harmonics[:, degree**2 - 1 : (degree + 1) ** 2 - 1]
            sums.append(row_moments(own.contiguous(), amplitude[:, :width].contiguous(), found.offsets))
        if self.spin is None or tables.moments is None or spins is None:
            return Moments.of_sums(sums, masses)
        scale, shift = (table_rows(table, kinds) for table in tables.moments)
        weights = torch.addcmul(shift, scale, radial[:, : shift.shape[1]]) * squared
        neighbors = near.neighbors.flatten()[found.slots[:count].clamp(min=0).long()].clamp(min=0).long()
        magnetic = self.spin.magnetic[kinds % self.ntypes][:, None]
        lines = neighbor_lines(spins[neighbors], magnetic, rows[:, 1:4] * r)
        return Moments.of_sums(sums, masses, row_moments(lines, weights, found.offsets))

    def radial_functions(self, r: torch.Tensor) -> torch.Tensor:
        """g, followed by q, (R, channels + radial_modes), for distances (R, 1)."""
        f = self.frequencies
        if self.options.basis_type == "bessel":
            basis = torch.sin(r * f) / r
        else:
            width = self.cutoff / max(self.options.n_radial - 1, 1)
            basis = torch.exp(-((r - f) ** 2) / (2 * width**2))
        hidden = self.radial.hidden(basis)
        weight = self.radial.second if self.modes is None else torch.cat([self.radial.second, self.modes], 1)
        return linear(hidden, weight, None)

    def amplitude(self, found: torch.Tensor, kinds: torch.Tensor, tables: PairTables) -> torch.Tensor:
        """F (R, channels), from `radial_functions` and pairs of types (R,)."""
        channels, modes = self.options.channels, self.options.radial_modes
        f = torch.addcmul(
            table_rows(tables.shift, kinds), table_rows(tables.scale, kinds), found[:, :channels]
        )
        if modes:
            mixing = table_rows(tables.mixing, kinds).unflatten(1, (channels, modes))
            f = f + (mixing @ found[:, channels:, None])[:, :, 0]
        return f

    def amplitudes(self, r: torch.Tensor, centers: torch.Tensor, neighbors: torch.Tensor) -> torch.Tensor:
        """F (a, b, P, channels), at distances (P,) in A, for centres and neighbours of these types, (a,) and (b,)."""
        tables, found, channels = self.pair_tables(), self.radial_functions(r[:, None]), self.options.channels
        kinds = centers[:, None] * self.ntypes + neighbors
        scale, shift, mixing = (table[kinds].unsqueeze(2) for table in tables[:3])
        f = torch.addcmul(shift, scale, found[:, :channels])
        if self.options.radial_modes:
            f = f + (mixing.unflatten(3, (channels, -1)) @ found[:, channels:, None])[..., 0]
        return f

    def pair_tables(self) -> PairTables:
        """The tables of all pairs of types."""
        e, n, channels = self.type_embedding, self.ntypes, self.options.channels
        centers, neighbors = e.repeat_interleave(n, 0), e.repeat(n, 1)
        own = self.options.moment_channels
        widths = [channels, channels, channels * self.options.radial_modes, own, own]
        *parts, by_scale, by_shift = self.pairs(torch.cat([centers, neighbors], 1)).split(widths, 1)
        scale, shift, mixing = (torch.tanh(part) for part in parts)
        moments = None if self.spin is None else self.spin.tables(by_scale, by_shift)
        return PairTables(1 + scale, centers + neighbors + shift, mixing, moments)

    @torch.no_grad()
    def learn_statistics(self, frames: Iterable[Neighborhood], absent: Sequence[Sequence[int]]) -> None:
        """Sets mean and stddev from data, so that all features have the scale of the type embedding: by their root mean
        square, or for the divisors, which are not around zero, by mean and deviation.

        Raises DataError for features that are zero everywhere, and for divisors that do not vary.
        """
        if self.spin is not None:
            frames = list(frames)
            self._learn_reference(frames)
        exact, mask = self.double_copy(), pair_matrix(absent, self.ntypes)
        count, zero = 0, torch.zeros(self.measured, dtype=torch.float64)
        total = squares = present = zero
        first = self.invariants.width
        own = slice(first, self.measured - 2)  # of magnetic moments: only atoms with some nearby count
        for near in frames:
            values = exact.raw(near.without(mask))[:, : self.measured]
            if exact.spin is not None:  # as in DeePMD-kit: with a closed gate deviations stay 1
                values[:, own] *= exact.spin.gate
            count, total, squares, present = (
                count + len(values),
                total + values.sum(0),
                squares + values.square().sum(0),
                present + (values != 0).sum(0),
            )
        if not count:
            return
        size = exact.type_embedding.square().mean().sqrt()
        mean, scale = torch.zeros_like(total), (squares / count).sqrt()
        scale[own] = (squares[own] / present[own].clamp(min=1)).sqrt()
        scale[own] = torch.where(scale[own] > _SMALLEST, scale[own], size)
        if not (scale > 0).all():
            raise DataError(
                f"{int((scale <= 0).sum())} of the descriptor's numbers are zero in all frames, so that there is no "
                "scale for them: are there atoms with neighbours in several directions?"
            )
        mean[-2:] = total[-2:] / count
        scale[-2:] = (scale[-2:].square() - mean[-2:].square()).clamp(min=0).sqrt()
        if (scale[-2:] <= _SMALLEST).any():
            raise DataError(
                "all atoms of the data have the same neighbourhood, and dpa4c needs them to differ"
            )
        types = torch.zeros(self.options.channels, dtype=mean.dtype)
        self.mean.copy_(torch.cat([mean, types]))
        self.stddev.copy_(torch.cat([scale / size, types + 1]))

    def _learn_reference(self, frames: Sequence[Neighborhood]) -> None:
        """Learns each type's root mean square of moments; 1 for types without."""
        assert self.spin is not None
        zero = torch.zeros(self.ntypes, dtype=torch.float64)
        count, squares = zero, zero
        for near in frames:
            spins = near.system.spins
            assert spins is not None
            count = count + torch.bincount(near.centers, minlength=self.ntypes)
            squares = squares.index_add(0, near.centers, spins.double().square().sum(1))
        mean = squares / count.clamp(min=1)
        self.spin.reference.copy_(torch.where(mean > _SMALLEST, mean.sqrt(), 1.0))

    def double_copy(self) -> "DPA4C":
        """A copy in float64, to compute statistics."""
        return DPA4C.from_tree(self.to_tree(), self.type_map, torch.float64)

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "DPA4C":
        if tree["add_chg_spin_ebd"]:
            raise UnsupportedModelError(f"dpa4c with add_chg_spin_ebd: {_CHARGE}")
        readout, head = tree["readout"], tree["radial_mode_head"]
        nodes = tree["radial_embedding"]["@variables"], tree["pair_film"]["network"]["@variables"]
        radial, pairs = ([node[f"{i}.matrix"] for i in range(2)] for node in nodes)
        weights = Weights(
            tree["@variables"]["mean"],
            tree["@variables"]["stddev"],
            tree["type_embedding"]["@variables"]["adam_type_embedding"],
            tree["radial_basis"]["@variables"]["adam_freqs"],
            radial,
            pairs,
            head and head["@variables"]["w"],
            [layer["@variables"]["w"] for layer in readout["channel_alignment"]],
            [layer and layer["@variables"]["w"] for layer in readout["probe_projections"]],
            None
            if tree["spin_channels"] is None
            else spin_weights(
                {**tree["spin_channels"]["@variables"], **tree["pair_film"]["@variables"]}.__getitem__
            ),
        )
        return cls.of_weights(DPA4COptions.from_tree(tree), type_map, weights, dtype)

    @classmethod
    def of_weights(
        cls, options: DPA4COptions, type_map: Sequence[str], weights: Weights, dtype: torch.dtype
    ) -> "DPA4C":
        """The descriptor with the arrays of a file."""

        def own(value: np.ndarray | None) -> Any:
            return None if value is None else tensor(value, dtype)

        w, aligned, probes = weights, map(own, weights.alignment), map(own, weights.probes)
        invariants = MomentInvariants(options.channels, options.lmax, list(aligned), list(probes))
        radial, pairs = [own(x) for x in w.radial], [own(x) for x in w.pairs]
        nets = SwiGLU(*radial), own(w.modes), SwiGLU(pairs[0], pairs[1], _PAIR_SCALE)
        embedding = own(w.type_embedding)[: len(type_map)].clone()
        statistics = own(w.mean), own(w.stddev)
        spin = None
        if options.use_spin is not None and w.spin is not None:
            arrays = {name: own(value) for name, value in w.spin.items()}
            arrays |= {name: arrays[name][: len(type_map)].clone() for name in list(_OF_SPIN)[:3]}
            spin = SpinInvariants(options.use_spin, arrays)
        frequencies = own(w.frequencies).reshape(-1)
        return cls(options, type_map, statistics, embedding, frequencies, nets, invariants, spin)

    def to_tree(self) -> Tree:
        o = self.options
        precision = saved_precision(o.precision)
        shared = {"precision": precision, "trainable": o.trainable}
        layers = [_product_node(weight, True, o) for weight in self.invariants.alignment]
        probes = [None if q is None else _product_node(q, False, o) for q in self.invariants.probes]
        table = F.pad(self.type_embedding, (0, 0, 0, 1))
        spin_channels, anchors = self._spin_nodes(precision)
        return {
            "@class": "Descriptor",
            "@version": 1,
            "type": o.KIND,
            **_WITHOUT,
            **o.to_tree(),
            "ntypes": self.ntypes,
            "type_map": list(self.type_map),
            "seed": None,
            "spin_channels": spin_channels,
            "type_embedding": {
                "@class": "SeZMTypeEmbedding",
                "@version": 1,
                "config": _embedding_config(o, self.ntypes),
                "@variables": {"adam_type_embedding": array(table, precision)},
            },
            "radial_basis": {
                "@class": "RadialBasis",
                "@version": 1,
                "config": _basis_config(o),
                "@variables": {"adam_freqs": array(self.frequencies[None], precision)},
            },
            "radial_embedding": {**self.radial.to_tree(precision), "trainable": o.trainable},
            "radial_mode_head": None if self.modes is None else _product_node(self.modes, False, o),
            "pair_film": {
                "@class": "OrderedPairFiLM",
                "@version": 1,
                "channels": o.channels,
                "radial_modes": o.radial_modes,
                "spin_channels": o.moment_channels,
                **shared,
                "network": {**self.pairs.to_tree(precision), "trainable": o.trainable},
                "@variables": anchors,
            },
            "readout": {
                "@class": "InvariantReadout",
                "@version": 1,
                "channels": o.channels,
                "lmax": o.lmax,
                **shared,
                "channel_alignment": layers,
                "probe_projections": probes,
            },
            "@variables": {name: array(getattr(self, name), precision) for name in _VARIABLES},
        }

    def _spin_nodes(self, precision: str) -> tuple[Tree | None, Tree]:
        """The node of magnetic moments (None without), and their part of the net of pairs' node."""
        o, spin = self.options, self.spin
        if spin is None:
            return None, {}
        padding = {"reference": 1.0}
        own = {
            word: F.pad(getattr(spin, name), (0, int(name != "gate")), value=padding.get(name, 0.0))
            for name, word in _OF_SPIN.items()
        }
        node = {
            "@class": "SpinChannels",
            "@version": 1,
            "ntypes": self.ntypes,
            "degree_channels": degree_channels(o.channels, o.lmax),
            "use_spin": o.use_spin,
            "precision": precision,
            "trainable": o.trainable,
            "@variables": {name: array(value, precision) for name, value in own.items()},
        }
        return node, {word: array(getattr(spin, name), precision) for name, word in _OF_PAIRS.items()}

    @classmethod
    def completed_tree(cls, tree: Tree) -> Tree:
        return {**tree, "seed": None}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        return {name: value for name, value in super().definition_of_tree(tree).items() if name != "use_spin"}

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        o, ntypes = DPA4COptions.from_tree(tree), len(type_map)
        if tree["type_map"] is not None:
            require_same(tree["type_map"], type_map, f"the type_map of {place}")
        require_same(tree["ntypes"], ntypes, f"{place}.ntypes")
        check_pairs(tree["exclude_types"], ntypes, f"{place}.exclude_types")
        wanted = {"type_embedding": _embedding_config(o, ntypes), "radial_basis": _basis_config(o)}
        for name, config in wanted.items():
            for word, value in config.items():
                if word not in ("seed", "precision", "trainable"):
                    require_same(tree[name]["config"].get(word), value, f"{place}.{name}.config.{word}")
        shapes = {
            ("type_embedding", "adam_type_embedding"): (ntypes + 1, o.channels),
            ("radial_basis", "adam_freqs"): (1, o.n_radial),
        }
        for (name, word), shape in shapes.items():
            found = tree[name]["@variables"][word].shape
            require_same(found, shape, f"the shape of {place}.{name}.@variables.{word}")
        _check_gated(tree["radial_embedding"], o.radial_widths, 1.0, f"{place}.radial_embedding")
        require_same(
            tree["radial_mode_head"] is not None, o.radial_modes > 0, f"whether {place} has radial_mode_head"
        )
        if o.radial_modes:
            _check_product(
                tree["radial_mode_head"], o.hidden, o.radial_modes, False, f"{place}.radial_mode_head"
            )
        film = tree["pair_film"]
        _check_spin(tree, o, ntypes, place)
        require_same(film["channels"], o.channels, f"{place}.pair_film.channels")
        require_same(film["radial_modes"], o.radial_modes, f"{place}.pair_film.radial_modes")
        _check_gated(film["network"], o.pair_widths, _PAIR_SCALE, f"{place}.pair_film.network")
        readout, channels = tree["readout"], degree_channels(o.channels, o.lmax)
        for name in ("channels", "lmax"):
            require_same(readout[name], tree[name], f"{place}.readout.{name}")
        layers, probes, ranks = (
            readout["channel_alignment"],
            readout["probe_projections"],
            probe_ranks(channels),
        )
        require_same((len(layers), len(probes)), (2, o.lmax), f"the numbers of layers of {place}.readout")
        for i, layer in enumerate(layers):
            _check_product(
                layer, channels[i + 1], channels[i + 1], True, f"{place}.readout.channel_alignment[{i}]"
            )
        for i, (probe, width, rank) in enumerate(zip(probes, channels[1:], ranks, strict=True)):
            at = f"{place}.readout.probe_projections[{i}]"
            require_same(probe is None, rank == width, f"whether {at} is null")
            if probe is not None:
                _check_product(probe, width, rank, False, at)
        for name in _VARIABLES:
            shape = tree["@variables"][name].shape
            require_same(shape, (cls.width_of_tree(tree),), f"the shape of {place}.@variables.{name}")
        if (tree["@variables"]["stddev"] <= 0).any():
            raise ModelFileError(f"{place}.@variables.stddev holds deviations that are not positive")

    @classmethod
    def width_of_tree(cls, tree: Tree) -> int:
        channels, lmax = int(tree["channels"]), tree["lmax"]
        magnetic = 0 if tree["use_spin"] is None else spin_width(degree_channels(channels, lmax)[2])
        return invariants_width(channels, lmax) + magnetic + 2 + channels

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        embedding = tree["type_embedding"]
        table = embedding["@variables"]["adam_type_embedding"]
        return {
            **tree,
            "type_map": list(type_map),
            "ntypes": len(types),
            "exclude_types": renumbered(tree["exclude_types"], types),
            "type_embedding": {
                **embedding,
                "config": {**embedding["config"], "ntypes": len(types)},
                "@variables": {"adam_type_embedding": table[[*types, -1]]},
            },
        }

    @classmethod
    def random(
        cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype
    ) -> "DPA4C":
        o: DPA4COptions = options
        precision, random = saved_precision(o.precision), np.random.default_rng([*seed, 0])
        product: Tree = {"random": random, "precision": precision, "dtype": dtype}
        embedding = tensor(
            random.normal(0, 1 / math.sqrt(len(type_map) + o.channels), (len(type_map), o.channels)).astype(
                precision
            ),
            dtype,
        )
        if o.basis_type == "bessel":
            numbers = np.arange(1, o.n_radial + 1) * np.pi / o.rcut
        else:
            numbers = np.linspace(0, o.rcut, o.n_radial)
        nets = (
            SwiGLU.random(o.radial_widths, **product),
            random_product(o.hidden, o.radial_modes, **product) if o.radial_modes else None,
            SwiGLU.random(o.pair_widths, **product, scale=_PAIR_SCALE),
        )
        channels = degree_channels(o.channels, o.lmax)
        probes = [
            None if rank == width else _orthonormal(width, rank, **product)
            for width, rank in zip(channels[1:], probe_ranks(channels), strict=True)
        ]
        invariants = MomentInvariants(
            o.channels, o.lmax, [random_product(width, width, **product) for width in channels[1:3]], probes
        )
        spin = None
        if o.use_spin is not None:
            spin = SpinInvariants.random(o.use_spin, channels[2], **product)
        width = invariants.width + (0 if spin is None else spin.width) + 2 + o.channels
        statistics = torch.zeros(width, dtype=dtype), torch.ones(width, dtype=dtype)
        frequencies = tensor(numbers.astype(precision), dtype)
        return cls(o, type_map, statistics, embedding, frequencies, nets, invariants, spin)

    def summary(self) -> dict[str, str]:
        o, channels = self.options, self.invariants.channels
        modes = f", mixed with {o.radial_modes} more by each pair of types" if o.radial_modes else ""
        return {
            "sums": f"{', '.join(map(str, channels))} of degrees 0 to {o.lmax}",
            "radial functions": f"{o.n_radial} {o.basis_type} to {o.channels}{modes}",
            "descriptor": f"{self.width} numbers",
        }


_WITHOUT: Tree = {
    **dict.fromkeys(("default_chg_spin", "spin", "charge_spin_embedding")),
    "add_chg_spin_ebd": False,
}


def spin_weights(get: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of `SpinInvariants`; `get` returns one by its name in files."""
    return {name: get(word) for name, word in (_OF_SPIN | _OF_PAIRS).items()}


def _check_spin(tree: Tree, o: DPA4COptions, ntypes: int, place: str) -> None:
    """Raises ModelFileError for parts for magnetic moments that do not fit the options."""
    film, node, width = tree["pair_film"], tree["spin_channels"], o.moment_channels
    require_same(film["spin_channels"], width, f"{place}.pair_film.spin_channels")
    require_same(node is not None, o.use_spin is not None, f"whether {place} has spin_channels")
    anchors = dict.fromkeys(_OF_PAIRS.values(), (width,)) if width else {}
    found = {name: value.shape for name, value in film["@variables"].items()}
    require_same(found, anchors, f"the shapes of {place}.pair_film.@variables")
    if node is None or o.use_spin is None:
        return
    require_same(len(o.use_spin), ntypes, f"the length of {place}.use_spin")
    require_same(node["use_spin"], o.use_spin, f"{place}.spin_channels.use_spin")
    for name, word in _OF_SPIN.items():
        shape = (1,) if name == "gate" else (ntypes + 1,)
        require_same(
            node["@variables"][word].shape, shape, f"the shape of {place}.spin_channels.@variables.{word}"
        )
    if not (node["@variables"]["spin_reference"] > 0).all():
        raise ModelFileError(f"{place}.spin_channels.@variables.spin_reference: expected positive numbers")


def _embedding_config(options: DPA4COptions, ntypes: int) -> Tree:
    return {
        "ntypes": ntypes,
        "embed_dim": options.channels,
        "precision": saved_precision(options.precision),
        "trainable": options.trainable,
        "padding": True,
        "seed": None,
    }


def _basis_config(options: DPA4COptions) -> Tree:
    return {
        "rcut": options.rcut,
        "basis_type": options.basis_type,
        "n_radial": options.n_radial,
        "exponent": _EXPONENT,
        "apply_envelope": False,
        "precision": saved_precision(options.precision),
    }


def _orthonormal(
    width: int, rank: int, random: np.random.Generator, precision: str, dtype: torch.dtype
) -> torch.Tensor:
    """(width, rank), random columns that are orthogonal and of length 1."""
    basis, triangle = np.linalg.qr(random.normal(size=(width, rank)))
    return tensor((basis * np.where(np.diag(triangle) < 0, -1.0, 1.0)).astype(precision), dtype)


def _product_node(weight: torch.Tensor, adds: bool, options: DPA4COptions) -> Tree:
    """The node of a linear layer, with or without a residual."""
    precision = saved_precision(options.precision)
    return {
        "@class": "Layer",
        "@version": 2,
        "bias": False,
        "use_timestep": False,
        "activation_function": "none",
        "resnet": adds,
        "precision": precision,
        "trainable": options.trainable,
        "@variables": {"w": array(weight, precision), "b": None, "idt": None},
    }


def _check_product(layer: Tree, inputs: int, outputs: int, adds: bool, place: str) -> None:
    """Raises ModelFileError unless the layer is a product of that shape, with or without a residual."""
    check_layer(layer, inputs, outputs, place)
    require_same((layer["bias"], layer["use_timestep"]), (False, False), f"(bias, use_timestep) of {place}")
    if layer["resnet"] != adds and outputs in (inputs, 2 * inputs):
        raise ModelFileError(f"{place}.resnet is {layer['resnet']}")
    if str(layer["activation_function"]).lower() not in ("none", "linear"):
        raise ModelFileError(f"{place} has an activation function")


def _check_gated(net: Tree, widths: list[int], scale: float, place: str) -> None:
    """Raises ModelFileError for a gated net of other widths."""
    require_same(net["mlp_layers"], widths, f"{place}.mlp_layers")
    require_same(net["output_scale"], scale, f"{place}.output_scale")
    inputs, hidden, outputs = widths
    shapes = {"0.matrix": (inputs, 2 * hidden), "1.matrix": (hidden, outputs)}
    require_same(sorted(net["@variables"]), sorted(shapes), f"the arrays of {place}")
    for name, shape in shapes.items():
        require_same(net["@variables"][name].shape, shape, f"the shape of {place}.@variables.{name}")
