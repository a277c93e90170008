"""The options of DPA-4."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from mdops.models.charge_spin import EXPECTED, is_charge_spin
from mdops.models.dpa4.mixing import MODES, DepthMix
from mdops.models.environment import automatic_sel_ratio, rounded
from mdops.models.keys import excluded_pairs_key, precision_key, seed_key
from mdops.ops.edge_rotation import MOST_COLUMNS
from mdops.options import Most, Options, check_pairs, key

_MIXED_AT_ONCE = "one of full_attn_res and block_attn_res alone"
_EXACT_ORDER = 3  # up to which DeePMD-kit's uniform grids are equivariant under rotations about an edge


@dataclass(kw_only=True)
class DPA4Options(Options):
    KIND = "SeZM"
    NAMES = ("dpa4", "DPA4", "sezm", "SeZM")
    IGNORED: ClassVar[tuple[str, ...]] = ("use_amp",)  # mdops computes in the precision that it is told
    NEUTRAL: ClassVar[dict[str, Any]] = {"use_spin": None}
    ADVICE: ClassVar[dict[str, str]] = {
        "use_spin": "the section `spin` of the model says which types have moments"
    }

    sel: int | list[int] | str = key(
        256,
        "no effect: all neighbours within the cutoff count; with virtual atoms of moments, the number of real atoms "
        "among neighbours",
        low=1,
        of="training",
    )
    rcut: float = key(6.0, "the cutoff", unit="A", above=0)
    env_exp: list[int] = key(
        [7, 5], "exponents of the envelopes of radial functions and messages; larger ones fall later", low=1
    )
    channels: int = key(64, "C, number of channels of each coefficient", low=1)
    basis_type: str = key("bessel", "the radial functions", choices=("bessel", "gaussian"))
    n_radial: int = key(16, "number of radial functions", low=1)
    radial_mlp: list[int] = key([0], "widths of the hidden layers of the radial net; 0: channels", low=0)
    edge_norm: bool = key(True, "normalise quantities that vanish at the cutoff")
    use_env_seed: bool = key(True, "atoms begin with sums over their surroundings")
    random_gamma: bool = key(
        True, "random rotations about edges; no effect, mdops does not use them", of="training"
    )
    edge_cartesian: bool = key(
        False, "in blocks of degree 1 and 2, multiply 3 x 3 matrices instead of using frames"
    )
    node_cartesian: int | str = key(
        "none", "products of messages as 3 x 3 matrices: none, or default:N or parity:N for N layers"
    )
    lmax: int = key(3, "largest degree, without l_schedule", low=0)
    l_schedule: list[int] | None = key(None, "largest degree of each block; it must not increase", low=0)
    mmax: int | None = key(1, "largest order; null: the degree", low=0)
    kmax: int = key(1, "largest frame order k in products on rotations", low=0)
    m_schedule: list[int] | None = key(None, "largest order of each block", low=0)
    extra_node_l: int = key(0, "degrees of atoms above those of messages", low=0)
    n_blocks: int = key(3, "number of blocks, without l_schedule", low=0)
    so2_norm: bool = key(False, "normalise between the layers of a message")
    mixing_layers: int = key(4, "number of layers of a message", alias=["so2_layers"], low=0)
    so2_attn_res: str = key("none", "mix the layers of a message in depth", choices=MODES)
    radial_so2_mode: str = key(
        "degree_channel",
        "radial functions are factors, or mix degrees, either equally in all channels or not",
        choices=("none", "degree", "degree_channel"),
    )
    radial_so2_rank: int = key(
        1, "number of mixtures, with a factor for each channel; 0: one mixture for each channel", low=0
    )
    n_focus: int = key(1, "F, number of groups of channels of a message", low=1)
    focus_dim: int = key(0, "number of channels of a group; 0: channels", low=0)
    n_atten_head: int = key(1, "number of attention heads; 0: no attention, the weights are envelopes", low=0)
    atten_f_mix: bool = key(False, "one attention for all groups together")
    atten_v_proj: bool = key(False, "a product of messages before the attention")
    atten_o_proj: bool = key(False, "a product of messages after the attention")
    ffn_neurons: int = key(0, "width of the layers within an atom; 0: chosen by the channels", low=0)
    grid_mlp: bool | list[bool] = key(
        False,
        "mix channels before and after products on grids: in messages, in atoms' messages, within atoms",
    )
    grid_branch: int | list[int] = key(
        0, "number of products that grids mix, for the same three places as grid_mlp; 0: one", low=0
    )
    ffn_blocks: int = key(1, "number of layers within an atom in each block", low=1)
    sandwich_norm: list[bool] = key(
        [False, True, True, False],
        "normalise before messages, after messages, before layers within atoms, after these layers",
    )
    mlp_bias: bool = key(False, "use biases")
    layer_scale: bool = key(False, "trained factors for the output of layers")
    full_attn_res: str = key("none", "mix everything that blocks add in depth", choices=MODES)
    block_attn_res: str = key("none", "mix the total that each block adds in depth", choices=MODES)
    s2_activation: list[bool] = key(
        [False, True], "products on a grid on the sphere, in messages and within atoms"
    )
    ffn_so3_grid: bool = key(False, "products on a grid of rotations within atoms")
    node_wise_s2: bool = key(False, "products of both ends of an edge on a grid on the sphere")
    node_wise_so3: bool = key(False, "the same on a grid of rotations")
    message_node_s2: bool = key(False, "products of messages and the atom on a grid on the sphere")
    message_node_so3: bool = key(False, "the same on a grid of rotations")
    so3_readout: str = key(
        "none",
        "layers that read the final features: of scalars only, or with grids",
        choices=("none", "glu", "mlp"),
    )
    readout_layers: int = key(1, "number of readout layers", low=1)
    lebedev_quadrature: bool | list[bool] = key(
        True, "points of DeePMD-kit's grids on the sphere; all give the same numbers"
    )
    activation_function: str = key("silu", "activation function of all nets")
    glu_activation: bool = key(True, "gates within atoms have separate inputs")
    add_chg_spin_ebd: bool = key(False, "add an embedding of charge and multiplicity to the type embedding")
    default_chg_spin: list[float] | None = key(None, "charge and multiplicity of systems that give none")
    exclude_types: list[list[int]] = excluded_pairs_key()
    precision: str = precision_key("float32", absent="float32", implied="float32")
    eps: float = key(1e-7, "added in norms to avoid division by zero", above=0)
    trainable: bool = key(True, "whether the weights are trained", of="training")
    seed: int | None = seed_key(absent=None)
    inner_clamp_r_inner: float | None = key(
        None, "distances do not fall below this", unit="A", above=0, where="file"
    )
    inner_clamp_r_outer: float | None = key(
        None, "from where they are less than they are", unit="A", above=0, where="file"
    )
    use_spin: list[bool] | None = key(None, "for each type whether its atoms have a moment", where="file")

    def __post_init__(self) -> None:
        """Writes every option as in DeePMD-kit's files, so that equivalent options compare equal."""
        self.radial_mlp = [width or self.channels for width in self.radial_mlp]
        for name, count in (("grid_mlp", 3), ("grid_branch", 3), ("lebedev_quadrature", 2)):
            given = getattr(self, name)
            setattr(self, name, given if isinstance(given, list) else [given] * count)
        self.node_cartesian = str(self.node_cartesian)
        degrees, orders = self.degrees, self.orders
        self.l_schedule, self.m_schedule, self.n_blocks = degrees, orders, len(degrees)
        self.lmax = degrees[0] if degrees else self.lmax
        self.mmax = orders[0] if orders else self.lmax if self.mmax is None else self.mmax

    @property
    def cutoff(self) -> float:
        return self.rcut

    @property
    def degrees(self) -> list[int]:
        """lmax of each block."""
        return [self.lmax] * self.n_blocks if self.l_schedule is None else list(self.l_schedule)

    @property
    def orders(self) -> list[int]:
        """mmax of each block."""
        if self.m_schedule is not None:
            return list(self.m_schedule)
        return [ell if self.mmax is None else min(self.mmax, ell) for ell in self.degrees]

    @property
    def first_degree(self) -> int:
        """lmax of the first messages."""
        return self.lmax

    @property
    def first_node_degree(self) -> int:
        return self.first_degree + self.extra_node_l

    @property
    def last_node_degree(self) -> int:
        return (self.degrees or [self.lmax])[-1] + self.extra_node_l

    @property
    def focus_width(self) -> int:
        """Channels of a group."""
        return self.focus_dim or self.channels

    @property
    def so2_function(self) -> str:
        return "silu" if self.s2_activation[0] else self.activation_function

    @property
    def node_matrices(self) -> tuple[bool, int]:
        """Whether `node_cartesian` multiplies from both sides, and how many layers it has."""
        name, _, count = str(self.node_cartesian).strip().lower().partition(":")
        if name in ("none", ""):
            return False, 0
        return (False, int(name)) if name.isdecimal() else (name == "parity", int(count or 1))

    def grid_kind(self, place: int) -> tuple[str, int]:
        """A grid's kind and its number of products; place 0: on edges, 1: on sums of messages, 2: within atoms."""
        mlp = self.grid_mlp[place] if isinstance(self.grid_mlp, list) else self.grid_mlp
        branches = self.grid_branch[place] if isinstance(self.grid_branch, list) else self.grid_branch
        return ("branch" if branches else "mlp" if mlp else "glu"), max(1, branches)

    def hidden_width(self, doubled: bool) -> int:
        """`ffn_neurons`, or a width from the number of channels."""
        return self.ffn_neurons or automatic_width(self.channels, 8 / 3 if doubled else 4)

    def depth_mix(self, mode: str) -> DepthMix:
        return DepthMix(self.channels, mode == "dependent", self.mlp_bias, self.eps)

    def rows_of(self, nodes: torch.Tensor, coefficients: int) -> torch.Tensor:
        """(N, H, D, C), from nodes (N, H D C) or (N, H D C + 1)."""
        size = coefficients * self.channels
        count = nodes.shape[1] // size
        return nodes[:, : count * size].reshape(-1, count, coefficients, self.channels)

    def check(self, place: str, type_map: Sequence[str]) -> None:
        require = self.requirement(place)
        if isinstance(self.sel, str):
            automatic_sel_ratio(self.sel, f"{place}.sel")
        check_pairs(self.exclude_types, len(type_map), f"{place}.exclude_types")
        for name, length in (("env_exp", 2), ("sandwich_norm", 4), ("s2_activation", 2)):
            require(len(getattr(self, name)) == length, name, f"{length} values")
        for name, length in (("grid_mlp", 3), ("grid_branch", 3), ("lebedev_quadrature", 2)):
            given = getattr(self, name)
            require(not isinstance(given, list) or len(given) == length, name, f"one value, or {length}")
        degrees, orders = self.degrees, self.orders
        require(degrees == sorted(degrees, reverse=True), "l_schedule", "degrees that never rise")
        fits = len(orders) == len(degrees) and all(m <= ell for m, ell in zip(orders, degrees, strict=True))
        require(fits, "m_schedule", f"an order for each block, not above its degree: {degrees}")
        require(self.kmax <= self.first_degree, "kmax", f"the degree, {self.first_degree}, or less")
        mixes = self.full_attn_res == "none" or self.block_attn_res == "none"
        require(mixes, "block_attn_res", _MIXED_AT_ONCE)
        attended = self.focus_width * (self.n_focus if self.atten_f_mix else 1)
        divides = not self.n_atten_head or attended % self.n_atten_head == 0
        require(divides, "n_atten_head", f"a divisor of {attended}, the channels that it is of")
        try:
            is_known = str(self.node_cartesian).split(":")[0].strip().lower()
            is_right = is_known in ("", "none", "default", "parity") or is_known.isdecimal()
            self.node_matrices  # noqa: B018  (it reads the number)
        except ValueError:
            is_right = False
        require(is_right, "node_cartesian", '"none", or "default:N" or "parity:N" with a number N of layers')
        grids = self.node_wise_s2 or self.node_wise_so3 or self.message_node_s2 or self.message_node_so3
        by_matrices = self.edge_cartesian and any(ell in (1, 2) for ell in degrees)
        require(not (by_matrices and grids), "edge_cartesian", "false with grids of messages")
        even = (
            self.lebedev_quadrature[0]
            if isinstance(self.lebedev_quadrature, list)
            else self.lebedev_quadrature
        )
        in_messages = self.s2_activation[0] or (self.node_wise_s2 and not self.node_wise_so3)
        exact = even or not in_messages or all(m <= _EXACT_ORDER for m in orders)
        why = f"true with orders above {_EXACT_ORDER}: DeePMD-kit's other points are too few for these"
        require(exact, "lebedev_quadrature", why)
        require(
            is_charge_spin(self.default_chg_spin),
            "default_chg_spin",
            EXPECTED,
        )
        coefficients = (max([self.lmax, *(degrees or ())]) + self.extra_node_l + 1) ** 2
        require(coefficients <= MOST_COLUMNS, "lmax", "10 or less, with extra_node_l")
        if self.use_spin is not None:
            require(len(self.use_spin) == len(type_map), "use_spin", "a truth value for each type")
            require(self.first_node_degree > 0, "lmax", "1 or more, or extra_node_l, with magnetic moments")
        both = (self.inner_clamp_r_inner is None) == (self.inner_clamp_r_outer is None)
        require(both, "inner_clamp_r_inner", "both ends of the clamp, or none")
        if self.inner_clamp_r_inner is not None and self.inner_clamp_r_outer is not None:
            rises = self.inner_clamp_r_inner < self.inner_clamp_r_outer
            require(rises, "inner_clamp_r_inner", "less than inner_clamp_r_outer")

    def resolve_sel(self, most: Most, place: str) -> Self:
        if not isinstance(self.sel, str):
            return self
        ratio = automatic_sel_ratio(self.sel, f"{place}.sel")
        return dataclasses.replace(self, sel=max(4, rounded(most(self.rcut)[1] * ratio)))


def automatic_width(inputs: int, times: float) -> int:
    """The width of a hidden layer, a multiple of 32."""
    return 32 * math.ceil(times * inputs / 32)
