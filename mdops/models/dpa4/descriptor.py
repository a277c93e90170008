"""The descriptor dpa4 (SeZM): DPA-4, which passes equivariant messages between atoms."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

from mdops.models import schema
from mdops.models.contract import Features, Tree, renumbered
from mdops.models.dpa4.block import Block, FeedForward, scalars
from mdops.models.dpa4.edges import Edges, RadialBasis, RadialNet, bridge, clamped
from mdops.models.dpa4.embedding import ChargeSpin, Moments, Surroundings, TypeTable
from mdops.models.dpa4.options import DPA4Options
from mdops.models.graph import GraphDescriptor, Room, device_memory, neighbor_graph_of
from mdops.models.neighborhood import Neighborhood, NeighborSpec, pair_matrix
from mdops.models.registry import register
from mdops.models.shapes import check_options
from mdops.models.variables import load_variables, variables_of
from mdops.models.ways import EdgesBySplines, way_of
from mdops.nn.equivariant.indices import by_order, coefficients
from mdops.nn.equivariant.linear import draw_weights
from mdops.nn.equivariant.norm import ScalarNorm
from mdops.nn.equivariant.rotation import frame_quaternions, spherical_harmonics, wigner_rows
from mdops.ops import EdgeIndex, edge_frames, edge_gather, edge_scatter, row_moments
from mdops.ops.activation import is_smooth
from mdops.ops.edge_frames import MOST_FRAME_DEGREE
from mdops.ops.switch_curve import fade_curve
from mdops.options import saved_precision
from mdops.tracing import is_exported

VERSION = 1.2
_FADES = 1.1  # from this version on, all contributions of an edge fade out at the cutoff
_FLOOR = 0.25  # added to the sum of an atom's squared envelopes, from then on
_ARRAYS_OF_ATOMS = 48  # that a block saves for the gradient, at most


class _Shares(NamedTuple):
    """Shares of the device's memory that may be saved for the gradient: `all` without runs. If that is too little,
    edges go in runs: `run` for one of them, `runs` for all that are not recomputed, `atoms` for atoms."""

    all: float
    run: float
    runs: float
    atoms: float


# A CPU's memory has other uses, too.
_SHARES = {"cuda": _Shares(0.6, 1 / 16, 1 / 3, 1 / 8), "cpu": _Shares(0.24, 1 / 64, 1 / 32, 1 / 24)}
_FADING = "envelope"  # the name of its spline
_FIRST_FILM = 0.01  # the initial strength of the FiLM by surroundings


@register
class DPA4(EdgesBySplines, GraphDescriptor):
    """D_i = the scalars of atom i after the last block and layers that read them.

    An atom has (l + 1)^2 coefficients of real harmonics in C channels. Its scalars begin as the embedding of its type,
    changed by sums over its surroundings. Its other coefficients begin as sums of its edges' harmonics. A block adds
    messages of neighbours (`convolution`), and then applies layers to each atom alone (`block`).

    Its parts have the names in DeePMD-kit's files, and its state is what these files hold.

    Attributes:
        blocks: the layers.
        version: of the file; from 1.1 on radial features fade out at the cutoff.
        has_virtual_atoms: whether some neighbours are virtual atoms, which may be as near as they like.
    """

    has_virtual_atoms = False

    Options = DPA4Options
    NODE = schema.Node(
        {
            "ntypes": (schema.count, None),
            "type_map": schema.type_map,
            "env_mat": (schema.optional(schema.node), None),
            "@variables": schema.part,
        }
    )
    mixed: ClassVar[bool] = True

    excluded: torch.Tensor
    magnetic: torch.Tensor
    _up: torch.Tensor

    def __init__(self, options: DPA4Options, type_map: Sequence[str], version: float = VERSION) -> None:
        super().__init__()
        o, ntypes = options, len(type_map)
        self.options, self.type_map, self.version = options, list(type_map), version
        self.type_embedding = TypeTable(ntypes, o.channels)
        self.charge_spin_embedding = None
        if o.add_chg_spin_ebd:
            self.charge_spin_embedding = ChargeSpin(o.channels, o.activation_function)
        self.spin_embedding = None
        if o.use_spin is not None:
            self.spin_embedding = Moments(ntypes, o.channels, o.activation_function)
        self.register_buffer("magnetic", torch.tensor(o.use_spin or [False] * ntypes), persistent=False)
        self.env_seed_embedding = self.film_scale_norm = self.film_shift_norm = None
        if o.use_env_seed:
            seed = ntypes, o.n_radial, o.channels, o.activation_function, o.mlp_bias
            self.env_seed_embedding = Surroundings(*seed, moments=o.use_spin is not None)
            if o.edge_norm:
                self.film_scale_norm, self.film_shift_norm = (
                    ScalarNorm(o.channels, eps=o.eps) for _ in range(2)
                )
            first = torch.full((1,), _FIRST_FILM, dtype=torch.float64).log()
            self.film_scale_strength_log, self.film_shift_strength_log = (
                nn.Parameter(first.clone()) for _ in range(2)
            )
        self.radial_basis = RadialBasis(o.rcut, o.n_radial, o.basis_type, o.env_exp[0])
        hidden = [width or o.channels for width in o.radial_mlp]
        widths = [o.n_radial, *hidden, (o.first_node_degree + 1) * o.channels]
        self.radial_embedding = RadialNet(widths, o.activation_function, o.edge_norm)
        self.blocks = nn.ModuleList(Block(o, k) for k in range(len(o.degrees)))
        self.final_full_attn_res = self.final_block_attn_res = None
        if o.full_attn_res != "none":
            self.final_full_attn_res = o.depth_mix(o.full_attn_res)
        if o.block_attn_res != "none":
            self.final_block_attn_res = o.depth_mix(o.block_attn_res)
        reads_all = o.so3_readout != "none"
        readers = [
            FeedForward(
                o.last_node_degree if reads_all else 0,
                o.channels,
                o.hidden_width(doubled=o.glu_activation),
                grid=("mlp" if o.so3_readout == "mlp" else "glu") if reads_all else None,
                kmax=min(o.kmax, o.last_node_degree),
                function=o.activation_function,
                doubled=o.glu_activation,
                bias=o.mlp_bias,
            )
            for _ in range(o.readout_layers)
        ]
        self.readout_pre_layers, self.output_ffn = nn.ModuleList(readers[:-1]), readers[-1]
        self.register_buffer("excluded", pair_matrix(o.exclude_types, ntypes), persistent=False)
        self.register_buffer("_up", torch.tensor([0.0, 0.0, 1.0]), persistent=False)

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]
        return self.blocks

    @property
    def kind(self) -> str:
        return self.options.NAMES[0]

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return (NeighborSpec(self.options.rcut, None, True),)

    captures = True

    def takes_matmul(self, matmul: str) -> bool:
        device = next(self.parameters()).device
        return matmul == "tf32" and any(block.so2_conv.takes_matmul(device) for block in self._blocks)

    def graph_sizes(self, within: Sequence[torch.Tensor]) -> torch.Tensor:
        edges = within[0][:, 0].long()
        if self.has_virtual_atoms:
            # Only real pairs are counted. Both atoms have a virtual one, and are neighbours of their own.
            edges = 4 * edges + 2
        none = torch.zeros_like(edges)
        return torch.stack([edges, none, none], 1)

    @property
    def width(self) -> int:
        return self.options.channels

    @property
    def reach(self) -> int:
        """In cutoffs: one more if first features are sums over neighbours, and one more if these sums, or messages,
        have the neighbours' `sent`, which depends on their own neighbours."""
        layers = len(self.blocks) + self.options.use_env_seed
        return max(1, layers + (self.options.inner_clamp_r_inner is not None and layers > 0))

    def graph(self, near: Neighborhood) -> Edges:
        o = self.options
        graph = neighbor_graph_of(near, o.rcut, excluded=self.excluded if o.exclude_types else None)
        present, kinds = (graph.i >= 0)[:, None], near.centers
        vectors = -graph.vectors(near.displacements)  # from the neighbour to the atom
        # Rows after the last edge get finite numbers; no sum reads them.
        vectors = torch.where(present, vectors, self._up)
        r = vectors.norm(dim=1, keepdim=True)
        inner, outer, sent = o.inner_clamp_r_inner, o.inner_clamp_r_outer, None
        if inner is not None and outer is not None:
            long = clamped(r, inner, outer)
            vectors, r = vectors * (long / r), long
            sent = self._sent(torch.where(present, bridge(r, inner, outer), 1.0), graph)
            if near.system.exchange is not None:  # ghosts have no edges here
                sent = near.system.exchange(sent)
        way, of_tables = way_of(self), None
        splines = None if way is None else way.make(near)
        if splines is None:
            fades = torch.where(present, self._fades(r), 0.0)
        else:
            of_tables = splines.kinds(kinds, graph.of_center, graph.of_neighbor)
            fades = splines.numbers(_FADING, r, of_tables)
        floor = _FLOOR if self.version >= _FADES else o.eps
        degree = torch.rsqrt(edge_scatter(fades.square(), graph.of_center) + floor)
        moments = self._moments(near)
        once = near.first_derivative_only
        known = kinds, self._embedded(near, moments), degree, moments, sent, once, near.matmul, splines
        given = (vectors, r, fades, present, *(() if of_tables is None else (of_tables,)))
        size = self._edges_at_once(vectors, len(kinds)) if once and not is_exported() else None
        atoms = None if near.system.exchange is None else near.system.exchange.atoms
        if size is None or len(vectors) <= size:
            found = self._edges((graph.of_center, graph.of_neighbor), known, *given)
            return found if atoms is None else found._replace(atoms=atoms)
        runs = []
        memory, share = device_memory(vectors.device), _SHARES[vectors.device.type]
        of_edges, of_atoms = Room(share.runs * memory), Room(share.atoms * memory)
        for begin, of_run in enumerate(zip(*(one.split(size) for one in given), strict=True)):
            begin *= size
            end = begin + len(of_run[0])
            of_center = EdgeIndex(graph.i[begin:end], None, graph.offsets.clamp(begin, end) - begin)
            of_neighbor = EdgeIndex.of(graph.j[begin:end], graph.of_neighbor.offsets.shape[0] - 1)
            runs.append(of_edges.run(self._edges, (of_center, of_neighbor), known, *of_run))
        none = vectors[:0]
        return runs[0]._replace(
            of_center=graph.of_center,
            of_neighbor=graph.of_neighbor,
            vectors=vectors,
            lengths=r,
            envelope=fades,
            kinds=of_tables,
            runs=tuple(run._replace(is_run=True) for run in runs),
            rooms=(of_edges, of_atoms),
            atoms=atoms,
            **{name: none for name in ("basis", "radial", "of_edge", "scalars", "harmonics")},
            rotations={},
        )

    def _edges_at_once(self, vectors: torch.Tensor, atoms: int) -> int:
        """How many edges may be in memory at once with what layers save for the gradient."""
        memory, share = device_memory(vectors.device), _SHARES[vectors.device.type]
        kept, of_edge = self._kept(vectors, atoms)
        return len(vectors) if kept <= share.all * memory else max(1, int(share.run * memory / of_edge))

    def _kept(self, vectors: torch.Tensor, atoms: int) -> tuple[int, int]:
        """The bytes that all blocks save for the gradient, and those per edge of one block, at most."""
        of_edge = [block.so2_conv.kept_of_edge(vectors) for block in self._blocks] or [1]
        of_atom = _ARRAYS_OF_ATOMS * len(coefficients(self.options.first_node_degree)) * self.width
        numbers = len(vectors) * sum(of_edge) + atoms * of_atom * len(self.blocks)
        return vectors.element_size() * numbers, vectors.element_size() * max(of_edge)

    def _edges(
        self,
        of: tuple[EdgeIndex, EdgeIndex],
        known: tuple[Any, ...],
        vectors: torch.Tensor,
        r: torch.Tensor,
        fades: torch.Tensor,
        present: torch.Tensor,
        of_tables: torch.Tensor | None = None,
    ) -> Edges:
        """The `Edges` of these alone, with what is known of the atoms."""
        (of_center, of_neighbor), (kinds, types, degree, moments, sent, once, matmul, splines) = of, known
        basis = radial = of_edge = vectors[:, :0]
        if splines is None:
            basis = torch.where(present, self.radial_basis(r), 0.0)
            ends = (edge_gather(types, of_neighbor) + edge_gather(types, of_center)) * present
            radial = self._radial(basis, fades)
            of_edge = radial + ends[:, None]
        harmonics, rotations = self._frames(vectors, once)
        return Edges(
            of_center=of_center,
            of_neighbor=of_neighbor,
            types=kinds,
            embedded=types,
            vectors=vectors,
            lengths=r,
            basis=basis,
            envelope=fades,
            radial=radial,
            of_edge=of_edge,
            scalars=of_edge if splines is not None else of_edge[:, 0],
            rotations=rotations,
            harmonics=harmonics,
            degree=degree,
            moments=moments,
            sent=sent,
            splines=splines,
            kinds=of_tables,
            once=once,
            matmul=matmul,
        )

    def _fades(self, r: torch.Tensor) -> torch.Tensor:
        # DeePMD-kit rounds this cutoff to float32.
        return fade_curve(r, float(np.float32(self.options.rcut)), self.options.env_exp[1])

    def _radial(self, basis: torch.Tensor, fades: torch.Tensor) -> torch.Tensor:
        """(E, l, C), radial features by degree."""
        o = self.options
        radial = self.radial_embedding(basis).unflatten(1, (o.first_node_degree + 1, o.channels))
        return radial * fades[:, :, None] if self.version >= _FADES else radial

    @property
    def why_no_splines(self) -> str | None:
        """Why splines cannot replace the functions of lengths and types; None: they can."""
        o = self.options
        if o.add_chg_spin_ebd or o.use_spin is not None:
            return "edges depend on charges, or on magnetic moments"
        if self.has_virtual_atoms:
            return "virtual atoms may be nearer than splines begin"
        if not self._blocks:
            return "it has no blocks"
        if not is_smooth(o.activation_function):
            return "the slopes of its activation function jump"
        return None if o.first_node_degree else "no atom has coefficients of degree 1"

    def radial_functions(self, r: torch.Tensor, types: torch.Tensor) -> dict[str, torch.Tensor]:
        """All functions of lengths r (P,) and pairs of these types (n,), by names: (n, n, P, functions) for each centre
        and neighbour."""
        n, r = len(types), r[:, None]
        basis, fades = self.radial_basis(r), self._fades(r)
        radial, rows = self._radial(basis, fades), self.type_embedding(types)
        ends = (rows[:, None] + rows)[:, :, None, None]
        of_edge = (radial + ends).flatten(0, 2)
        found: dict[str, torch.Tensor] = {}
        for block in self._blocks:
            found |= {
                name: values.view(n, n, len(r), -1)
                for name, values in block.so2_conv.radial_functions(of_edge).items()
            }
        own = {_FADING: fades}
        if self.env_seed_embedding is not None:
            own |= {name: radial[:, ell] for ell, name in self._names_of_degrees()}
            kinds = self.env_seed_embedding.env_type_embed(types)
            pairs = [one.reshape(-1, kinds.shape[1]) for one in self._of_pairs(kinds, len(r))]
            g = self.env_seed_embedding.numbers(basis.repeat(n * n, 1), *pairs)
            found["surroundings"] = g.view(n, n, len(r), -1) * (fades / r)
        return found | {name: values.expand(n, n, *values.shape) for name, values in own.items()}

    @staticmethod
    def _of_pairs(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The neighbour's and the centre's rows (n, W) for all pairs, `count` times each, (n, n, count, W)."""
        shape = len(rows), len(rows), count, rows.shape[1]
        return rows[None, :, None].expand(shape), rows[:, None, None].expand(shape)

    def _names_of_degrees(self) -> list[tuple[int, str]]:
        """Degrees above 0, and the names of their radial features."""
        return [(ell, f"degree {ell}") for ell in range(1, self.options.first_node_degree + 1)]

    def _frames(
        self, vectors: torch.Tensor, once: bool
    ) -> tuple[torch.Tensor, dict[tuple[int, int], torch.Tensor]]:
        """`harmonics` and `rotations` of edges, without those that blocks compute themselves."""
        degree = self.options.first_node_degree if self.options.use_env_seed else None
        blocks = [
            block.so2_conv
            for block in self._blocks
            if block.so2_conv.in_frames and not (once and block.so2_conv.goes_by_one_kernel(vectors))
        ]
        wanted = sorted({(block.lmax, block.mmax) for block in blocks})
        harmonics, rotations, quaternions = None, {}, None
        for ell, m in wanted:
            if m <= 1 and ell <= MOST_FRAME_DEGREE:
                found, turn = edge_frames(vectors, ell, min(m, ell))
                harmonics = found if ell == degree else harmonics
            else:
                quaternions = frame_quaternions(vectors) if quaternions is None else quaternions
                turn = wigner_rows(quaternions, ell, tuple(by_order(ell, m)))
            rotations[ell, m] = turn
        if degree is None:
            return vectors[:, :0], rotations
        if harmonics is None and degree <= MOST_FRAME_DEGREE:
            harmonics, _ = edge_frames(vectors, degree, -1)
        return spherical_harmonics(vectors, degree) if harmonics is None else harmonics, rotations

    @property
    def charge_spin_defaults(self) -> tuple[Sequence[float] | None, ...]:
        return (self.options.default_chg_spin,) if self.options.add_chg_spin_ebd else ()

    @staticmethod
    def _sent(passes: torch.Tensor, graph: Any) -> torch.Tensor:
        """(N, 1), the product of `passes` (E, 1) over an atom's edges, by logarithms; 0 if one is 0."""
        none = passes <= 0
        logarithms = torch.where(none, 1.0, passes).log()
        zeros = edge_scatter(none.to(passes), graph.of_center)
        return torch.where(zeros > 0, 0.0, edge_scatter(logarithms, graph.of_center).exp())

    @property
    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _moments(self, near: Neighborhood) -> torch.Tensor | None:
        """(N, 3), the magnetic moments; 0 for types without."""
        if self.spin_embedding is None:
            return None
        moments = near.system.spins
        assert moments is not None  # `Potential` refuses systems without
        return moments.to(near.displacements.dtype) * self._are_magnetic(near.centers)

    def _are_magnetic(self, kinds: torch.Tensor) -> torch.Tensor:
        return self.magnetic[kinds][:, None]

    def _embedded(self, near: Neighborhood, moments: torch.Tensor | None) -> torch.Tensor:
        """(N, C), from types, charge and multiplicity, and the lengths of moments."""
        found: torch.Tensor = self.type_embedding(near.centers)
        if self.charge_spin_embedding is not None:
            added = self.charge_spin_embedding(near.system, self.options.default_chg_spin)
            found = found + (added if near.system.charge_spin is None else added[near.system.batch.long()])
        if self.spin_embedding is not None and moments is not None:
            found = found + self.spin_embedding.scalars(moments, self._are_magnetic(near.centers))
        return found

    def keeps_to_memory(self, graph: Edges) -> bool:
        return bool(graph.runs)

    def start(self, graph: Edges) -> tuple[torch.Tensor, None]:
        o = self.options
        first = graph.without_ghosts(graph.embedded)
        if self.env_seed_embedding is not None:
            scale, shift = self.env_seed_embedding(graph).chunk(2, 1)
            if self.film_scale_norm is not None and self.film_shift_norm is not None:
                scale, shift = self.film_scale_norm(scale), self.film_shift_norm(shift)
            of_scale, of_shift = self.film_scale_strength_log.exp(), self.film_shift_strength_log.exp()
            first = first * (1 + of_scale * scale.tanh()) + of_shift * shift.tanh()
        rest = (o.first_node_degree + 1) ** 2 - 1
        if o.use_env_seed and rest:
            others = graph.without_ghosts(graph.sums(self._harmonic_sums) * graph.degree[:, :, None])
        else:
            others = first.new_zeros(first.shape[0], rest, o.channels)
        if self.spin_embedding is not None and graph.moments is not None:
            own = self.spin_embedding.adam_spin_vec_weight[graph.without_ghosts(graph.types)]
            moments = graph.without_ghosts(graph.moments)
            added = self.spin_embedding.coefficients(moments)[:, :, None] * own[:, None]
            others = torch.cat([others[:, :3] + added, others[:, 3:]], 1)
        x = torch.cat([first[:, None], others], 1)
        x = x if graph.added is None else x + graph.added
        mixes = o.full_attn_res != "none" or o.block_attn_res != "none"
        nodes = torch.stack([x, x] if mixes else [x], 1).flatten(1)
        if graph.sent is not None:
            nodes = torch.cat([nodes, graph.without_ghosts(graph.sent)], 1)
        return nodes, None

    def _harmonic_sums(self, edges: Edges) -> torch.Tensor:
        """(N, (L + 1)^2 - 1, C): sums of edges' harmonics times radial features of their degree, not yet scaled."""
        harmonics, of_neighbor = edges.harmonics, edges.of_neighbor
        if edges.sent is not None:
            harmonics = harmonics * edge_gather(edges.sent, of_neighbor)
        of_degrees = harmonics.split([2 * ell + 1 for ell in range(self.options.first_node_degree + 1)], 1)
        found = []
        for ell, name in self._names_of_degrees():
            radial = edges.by_splines(name)
            radial = edges.radial[:, ell] if radial is None else radial
            found.append(row_moments(of_degrees[ell], radial, edges.of_center.offsets))
        if self.spin_embedding is not None and edges.moments is not None:
            weights = self.spin_embedding.adam_spin_nbr_weight[edges.types]
            added = self.spin_embedding.coefficients(edges.moments)[:, :, None] * weights[:, None]
            fades = edges.envelope
            if edges.sent is not None:
                fades = fades * edge_gather(edges.sent, of_neighbor)
            messages = edge_gather(added.flatten(1), of_neighbor) * fades
            found[0] = found[0] + edge_scatter(messages, edges.of_center).view(found[0].shape)
        return torch.cat(found, 1)

    def finish(self, nodes: torch.Tensor, local: None, graph: Edges) -> Features:
        return Features(self._values(self._coefficients(nodes), graph))

    def with_coefficients(
        self, near: Neighborhood, added: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The features (N, C) of each atom, and its coefficients (N, D, C) after the last block, with something added
        to the first ones."""
        graph = self.graph(near)._replace(added=added)
        nodes, local = self.start(graph)
        for layer in self.layers:
            nodes, local = layer(nodes, local, graph)
        x = self._coefficients(nodes)
        return self._values(x, graph), x

    def _coefficients(self, nodes: torch.Tensor) -> torch.Tensor:
        """(N, D, C), after the last block."""
        o = self.options
        rows = o.rows_of(nodes, (o.last_node_degree + 1) ** 2)
        x, before = rows[:, -1], list(rows[:, :-1].unbind(1))
        mix = self.final_full_attn_res or self.final_block_attn_res
        if mix is not None:
            x = mix(before, x, scalars)
        return x

    def _values(self, x: torch.Tensor, graph: Edges) -> torch.Tensor:
        x = x if self.options.so3_readout != "none" else x[:, :1]
        return graph.of_atoms(self._read, x[:, :, None])

    def _read(self, x: torch.Tensor) -> torch.Tensor:
        """(N, C), from rows (N, D, 1, C)."""
        for reader in self.readout_pre_layers:
            x = x + reader(x)
        found: torch.Tensor = x[:, 0, 0] + self.output_ffn.scalars(x)
        return found

    @classmethod
    def from_tree(cls, tree: Tree, type_map: Sequence[str], dtype: torch.dtype) -> "DPA4":
        options, version = DPA4Options.from_tree(tree), float(tree.get("@version", VERSION))
        variables = tree["@variables"]
        if options.use_spin is not None and version < VERSION:
            variables, version = _with_factor_outside(variables), VERSION
        made = cls(options, type_map, version)
        load_variables(made, variables, "the descriptor dpa4")
        return made.to(dtype)

    def to_tree(self) -> Tree:
        o, precision = self.options, saved_precision(self.options.precision)
        own = {
            "version_tensor": np.asarray(self.version),
            "mean": np.zeros(0, precision),
            "stddev": np.ones(0, precision),
        }
        calculators = ["wigner_calc"]
        if o.use_env_seed and o.first_node_degree:
            rows = coefficients(o.first_node_degree)[1:]
            own["gie.non_scalar_row_index"] = np.array([ell * ell + ell + m for ell, m in rows])
            own["gie.zonal_m0_col_index_for_row"] = np.array([ell * ell + ell for ell, _ in rows])
            own["gie.radial_slot_index_for_row"] = np.array([ell - 1 for ell, _ in rows])
            calculators += ["gie_zonal_wigner_calc"] if o.extra_node_l else []
        for name in calculators:
            own[f"{name}.l1_perm"] = np.array([1, 2, 0])
            own[f"{name}.l1_sign_outer"] = np.outer([-1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]).astype(precision)
        return {
            "@class": "Descriptor",
            "@version": self.version,
            "type": o.KIND,
            "ntypes": len(self.type_map),
            **o.to_tree(),
            "type_map": list(self.type_map),
            "env_mat": _environment(o),
            "@variables": {**own, **variables_of(self, precision)},
        }

    @classmethod
    def tree_of_file(cls, tree: Tree) -> Tree:
        """DeePMD-kit's nodes hold the options in a section."""
        if not isinstance(tree.get("config"), dict):
            return tree
        config = {name: value for name, value in tree["config"].items() if name != "s2_grid_resolution"}
        return {**config, **{name: value for name, value in tree.items() if name != "config"}}

    @classmethod
    def file_of_tree(cls, tree: Tree) -> Tree:
        outside = ("@class", "@version", "type", "env_mat", "@variables")
        config = {name: value for name, value in tree.items() if name not in outside}
        config["sel"] = tree["sel"] if isinstance(tree["sel"], list) else [tree["sel"]]
        return {**{name: tree[name] for name in outside if name in tree}, "config": config}

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        outside = ("inner_clamp_r_inner", "inner_clamp_r_outer", "use_spin", "env_mat")
        found = super().definition_of_tree(tree)
        return {**{name: value for name, value in found.items() if name not in outside}, "type": "dpa4"}

    @classmethod
    def check_tree(cls, tree: Tree, type_map: list[str], place: str) -> None:
        check_options(DPA4Options.from_tree(tree), tree, type_map, place)

    @classmethod
    def width_of_tree(cls, tree: Tree) -> int:
        width: int = tree["channels"]
        return width

    @classmethod
    def tree_of_types(cls, tree: Tree, types: Sequence[int], type_map: Sequence[str]) -> Tree:
        variables = dict(tree["@variables"])
        for name in ("type_embedding", "env_seed_embedding.env_type_embed"):
            table = variables.get(f"{name}.adam_type_embedding")
            if table is not None:
                variables[f"{name}.adam_type_embedding"] = table[[*types, len(table) - 1]]
        return {
            **tree,
            "type_map": list(type_map),
            "ntypes": len(types),
            "exclude_types": renumbered(tree["exclude_types"], types),
            "@variables": variables,
        }

    @classmethod
    def random(cls, options: Any, type_map: Sequence[str], seed: Sequence[int], dtype: torch.dtype) -> "DPA4":
        made, random = cls(options, type_map), np.random.default_rng([*seed, 0])
        draw_weights(made, random)
        return made.to(torch.float32 if saved_precision(options.precision) == "float32" else dtype).to(dtype)

    def summary(self) -> dict[str, str]:
        o = self.options
        blocks = ", ".join(f"{ell}/{m}" for ell, m in zip(o.degrees, o.orders, strict=True)) or "none"
        return {
            "blocks": f"degree/order {blocks}, {o.channels} channels",
            "reach": f"{self.reach * o.rcut:g} A, from where other atoms change an atom's energy",
        }


def _with_factor_outside(variables: Tree) -> Tree:
    """The arrays of a version before 1.2, which multiplied the sums of moments, not their products, by the factor."""
    name = "env_seed_embedding.spin_scale"
    return {**variables, name: variables[name] ** 2} if name in variables else variables


def _environment(o: DPA4Options) -> Tree:
    """The options that the node repeats."""
    return {"rcut": o.rcut, "rcut_smth": o.rcut, "protection": o.eps, "use_exp_switch": False}
