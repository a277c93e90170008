"""The atomic model "pairtab": energies of pairs of atoms by their distance, from a table."""

import dataclasses
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from mdops.errors import ConfigError, ModelFileError
from mdops.models import schema
from mdops.models.contract import AtomicModel, Tree
from mdops.models.environment import automatic_sel_ratio, rounded
from mdops.models.neighborhood import Neighborhood, NeighborSpec
from mdops.models.registry import register
from mdops.models.shapes import require_same
from mdops.models.standard import ModelOptions
from mdops.nn.net import array, tensor
from mdops.options import Most, key

TABLE_FILE = "pair_table.txt"  # the file name in a definition, for a table whose numbers are in the tree
_DRIFT = 0.1  # how far a row may be from its place by the first two rows, in steps


@dataclass(kw_only=True)
class PairTableOptions(ModelOptions):
    KIND = "pairtab"

    tab_file: str = key(
        doc="the file of the table: in each row a distance, A, then the energy of each pair of types "
        "i <= j, eV",
        where="input",
        of="training",
    )
    rcut: float = key(doc="the cutoff", unit="A", above=0)
    sel: int | list[int] | str = key(
        doc='largest number of neighbours of all types; "auto:f" is f times the number in the data',
        low=0,
        saved=int,
    )

    def __post_init__(self) -> None:
        if isinstance(self.sel, list):
            self.sel = sum(self.sel)  # as DeePMD-kit

    def check(self, place: str, type_map: Sequence[str]) -> None:
        super().check(place, type_map)
        if isinstance(self.sel, str):
            automatic_sel_ratio(self.sel, f"{place}.sel")

    @property
    def cutoff(self) -> float:
        return self.rcut

    def resolve_sel(self, most: Most, place: str) -> Self:
        """Raises ConfigError if there is no place for a neighbour."""
        if isinstance(self.sel, str):
            _, together = most(self.rcut)
            sel = rounded(together * automatic_sel_ratio(self.sel, f"{place}.sel"))
            return dataclasses.replace(self, sel=sel)
        if not self.sel:
            raise ConfigError(f"{place}.sel: {self.sel} has no slot for a neighbour")
        return self


@dataclass(frozen=True)
class Table:
    """Energies of pairs at distances first, first + step, ...

    Attributes:
        rows: (n + 1, 1 + pairs), the distance, A, and the energies of pairs of types i <= j, eV.
        coefficients: (ntypes, ntypes, n, 4), of the cubics of each interval in its x of [0, 1], that of x^3 first.
        first, step: A.
        last: A, of the given table; `rows` may go on to a longer cutoff.
    """

    rows: np.ndarray
    coefficients: np.ndarray
    first: float
    step: float
    last: float


@register
class PairTable(AtomicModel):
    """e_i = 1/2 sum_j u(r_ij), u of each pair of types a cubic spline in r between the rows of a table.

    u is 0 beyond the cutoff and the table, and NaN below the table's first row, where the potential raises an error.
    Only `out_bias` can be fitted to data.
    """

    Options = PairTableOptions
    NODE = schema.Node({**schema.MODEL, "tab": schema.part}, schema.MODEL_ARRAYS)
    NODES: ClassVar[dict[str, schema.Node]] = {
        "PairTab": schema.Node(
            {
                "rmin": (schema.not_negative, schema.REQUIRED),
                "rmax": (schema.positive, schema.REQUIRED),
                "hh": (schema.positive, schema.REQUIRED),
                "ntypes": (schema.count, schema.REQUIRED),
                "rcut": (schema.positive, schema.REQUIRED),
                "nspline": (schema.count, schema.REQUIRED),
                "@variables": schema.part,
            },
            {"vdata": True, "tab_info": True, "tab_data": True},
        ),
    }
    rows: torch.Tensor
    coefficients: torch.Tensor
    precision: torch.Tensor

    def __init__(
        self,
        options: PairTableOptions,
        type_map: Sequence[str],
        out_bias: torch.Tensor,
        out_std: torch.Tensor,
        table: Table,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(options, type_map, out_bias, out_std)
        self.first, self.step, self.last = table.first, table.step, table.last
        self.register_buffer("rows", tensor(table.rows, torch.float64))
        self.register_buffer("coefficients", tensor(table.coefficients, torch.float64))
        # It has no weights with a compute dtype. Energies of close pairs are large: they are float64.
        self.register_buffer("precision", torch.empty(0, dtype=dtype), persistent=False)

    @property
    def neighbors(self) -> tuple[NeighborSpec, ...]:
        return (NeighborSpec(self.options.rcut, (self.options.sel,), mixed=True),)

    @property
    def dtype(self) -> torch.dtype:
        return self.precision.dtype

    mixed_types = True
    captures = True

    @property
    def shortest(self) -> float:
        return self.first

    @property
    def intervals(self) -> int:
        """n, of the table."""
        return self.coefficients.shape[2]

    @property
    def counted_coefficients(self) -> torch.Tensor:
        """In float64, 0 for pairs whose first type, the centre's, has no energy."""
        return self.coefficients.double() * self.has_energy[:, None, None, None]

    def atomic_outputs(
        self, near: Neighborhood, fparam: torch.Tensor | None, aparam: torch.Tensor | None
    ) -> dict[str, torch.Tensor]:
        self.reject_unused_parameters(fparam, aparam)
        near = near.select((self.options.sel,), mixed=True)
        seen = near.neighbor_types != self.ntypes
        squared = near.displacements.to(self.coefficients.dtype).square().sum(-1)
        # Slots without a neighbour get a distance in the table, so that they add no NaN to gradients.
        r = torch.where(seen, squared, (self.first + self.step) ** 2).sqrt()
        energies = self.pair_energies(near.centers[:, None], near.neighbor_types.masked_fill(~seen, 0), r)
        return {"energy": 0.5 * torch.where(seen, energies, 0.0).sum(1).double()}

    def pair_energies(self, a: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        """u, eV, of pairs of the types a and b (int64) at the distances r, A; all of one shape, or broadcast."""
        x = (r - self.first) * (1 / self.step)
        x = x * torch.where(x < 0, torch.nan, 1.0)  # forces are NaN, too
        interval = x.detach().nan_to_num(0.0).clamp(0, self.intervals - 1).long()
        c3, c2, c1, c0 = self.coefficients[a, b, interval].unbind(-1)
        x = x - interval
        u = ((c3 * x + c2) * x + c1) * x + c0
        return u.masked_fill((r >= self.options.rcut) | (r >= self.first + self.intervals * self.step), 0.0)

    @classmethod
    def definition_of_tree(cls, tree: Tree) -> Tree:
        own = {"type": cls.Options.KIND, "tab_file": TABLE_FILE, "rcut": tree["rcut"], "sel": tree["sel"]}
        return {**super().definition_of_tree(tree), **own}

    @classmethod
    def check_tree(cls, tree: Tree, place: str) -> None:
        super().check_tree(tree, place)
        # (rows, 1 + pairs of types), and the same as cubic splines of each pair.
        table, arrays = tree["tab"], tree["tab"]["@variables"]
        ntypes, rows = len(tree["type_map"]), table["nspline"] + 1
        if tree["sel"] == 0 or table["nspline"] == 0:
            raise ModelFileError(f"{place} has no neighbours or no table")
        require_same(
            (table["ntypes"], table["rcut"]), (ntypes, tree["rcut"]), f"(ntypes, rcut) of {place}.tab"
        )
        require_same(
            arrays["vdata"].shape, (rows, 1 + ntypes * (ntypes + 1) // 2), f"the shape of {place}.tab vdata"
        )
        require_same(
            arrays["tab_data"].size, 4 * ntypes**2 * table["nspline"], f"the size of {place}.tab tab_data"
        )
        info = [table["rmin"], table["hh"], table["nspline"], ntypes]
        require_same(arrays["tab_info"].tolist(), info, f"{place}.tab tab_info")

    @classmethod
    def from_tree(cls, tree: Tree, dtype: torch.dtype) -> "PairTable":
        type_map, tab = list(tree["type_map"]), tree["tab"]
        arrays, extent = tab["@variables"], (len(type_map), len(type_map), int(tab["nspline"]), 4)
        coefficients = np.asarray(arrays["tab_data"], np.float64).reshape(extent)
        rows = np.asarray(arrays["vdata"], np.float64)
        table = Table(rows, coefficients, float(tab["rmin"]), float(tab["hh"]), float(tab["rmax"]))
        options = cls.Options.from_tree(tree, type_map=type_map, tab_file="")
        return cls(options, type_map, *cls.variables_of_tree(tree), table, dtype)

    def to_tree(self) -> Tree:
        o, n = self.options, self.intervals
        tab = {
            "@class": "PairTab",
            "@version": 1,
            "rmin": self.first,
            "rmax": self.last,
            "hh": self.step,
            "ntypes": self.ntypes,
            "rcut": o.rcut,
            "nspline": n,
            "@variables": {
                "vdata": array(self.rows),
                "tab_info": np.array([self.first, self.step, n, self.ntypes]),
                "tab_data": array(self.coefficients.flatten()),
            },
        }
        return {**self.head(2), "tab": tab}

    @classmethod
    def random(cls, options: PairTableOptions, seed: int, dtype: torch.dtype) -> "PairTable":
        """Of the file `tab_file`; nothing is random. Raises ConfigError for a file of another form."""
        ntypes = len(options.type_map)
        table = read_table(options.tab_file, options.rcut, ntypes)
        _refuse_other_order(options.tab_file, options.type_map)
        zeros = torch.zeros(ntypes, dtype=torch.float64)
        return cls(options, options.type_map, zeros, torch.ones_like(zeros), table, dtype)

    def summary(self) -> dict[str, str]:
        last = self.first + self.intervals * self.step
        return {
            "pair table": f"{self.intervals} intervals, from {self.first:g} to {last:g} A",
            "sel": f"{self.options.sel} of all types",
        }


def read_table(path: str | os.PathLike[str], cutoff: float, ntypes: int) -> Table:
    """The table of a text file: rows of a distance, A, and energies of the pairs of types 0-0, 0-1, ..., 1-1, ..., eV.

    Rows have the same step. A table that ends before the cutoff is extended as in DeePMD-kit: with zeros if it ends
    with zeros, else with a cubic that is zero there.

    Raises ConfigError, which names the file and the line. Warns where energies are not zero at the cutoff.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    numbered = [(i, line.partition("#")[0].split()) for i, line in enumerate(text.splitlines(), start=1)]
    lines = [(i, words) for i, words in numbered if words]
    columns = 1 + ntypes * (ntypes + 1) // 2
    rows = np.array([_row(f"{path}:{i}", words, columns, ntypes) for i, words in lines]).reshape(-1, columns)
    if len(rows) < 2:
        raise ConfigError(f"{path}: has {len(rows)} rows, expected two or more")
    first, last, step = (float(r) for r in (rows[0, 0], rows[-1, 0], rows[1, 0] - rows[0, 0]))
    off = np.abs(rows[:, 0] - (first + step * np.arange(len(rows)))) > _DRIFT * step
    if first < 0 or step <= 0 or off.any():
        bad = 0 if first < 0 else 1 if step <= 0 else int(np.argmax(off))
        expected = (
            "a distance, 0 or more" if first < 0 else "distances that grow, by the same step in each row"
        )
        raise ConfigError(f"{path}:{lines[bad][0]}: the distance is {rows[bad, 0]:g} A, expected {expected}")
    rows = _to_cutoff(path, rows, last, step, cutoff)
    return Table(rows, _cubics(rows, step, ntypes), first, step, last)


def _refuse_other_order(path: str | os.PathLike[str], type_map: Sequence[str]) -> None:
    """Raises ConfigError where the first line names the pairs of these types in another order, as `mdops zbl` does."""
    first = Path(path).read_text(encoding="utf-8").partition("\n")[0].split()
    found = [
        pair for pair in (word.split("-") for word in first) if len(pair) == 2 and {*pair} <= {*type_map}
    ]
    order = list(dict.fromkeys(name for pair in found for name in pair))
    if first[:1] == ["#"] and {*order} == {*type_map} and order != list(type_map):
        raise ConfigError(
            f"{path}: its columns are of {', '.join(order)}, and the type_map is {', '.join(type_map)}: make a "
            "table in the order of the type_map"
        )


def _row(place: str, words: list[str], columns: int, ntypes: int) -> list[float]:
    if len(words) != columns:
        raise ConfigError(
            f"{place}: has {len(words)} columns, expected {columns}: a distance, and the energies of "
            f"{columns - 1} pairs of {ntypes} types"
        )
    try:
        row = [float(word) for word in words]
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None
    if not np.isfinite(row).all():
        raise ConfigError(f"{place}: has a value that is not finite")
    return row


def _to_cutoff(
    path: str | os.PathLike[str], rows: np.ndarray, last: float, step: float, cutoff: float
) -> np.ndarray:
    """The rows, extended to the first at or beyond the cutoff if they are too few."""
    at_cutoff = int(np.ceil(cutoff / step - rows[0, 0] / step))  # the row there
    missing = at_cutoff - (len(rows) - 1)
    ends_with_zeros = not rows[-1, 1:].any()
    if cutoff <= last:
        jumps = (
            rows[max(at_cutoff - 1, 0), 1:].any()
            if ends_with_zeros and cutoff < last
            else not ends_with_zeros
        )
        if jumps:
            warnings.warn(
                f"{path}: energies are not zero at the cutoff, {cutoff:g} A, where they are cut", stacklevel=3
            )
        return rows
    if missing <= 0:
        return rows
    more = np.zeros((missing, rows.shape[1]))
    more[:, 0] = np.linspace(last + step, last + step * missing, missing)
    if not ends_with_zeros:
        warnings.warn(
            f"{path}: ends at {last:g} A, before the cutoff, {cutoff:g} A, with energies that are not zero: a cubic "
            "goes on from there to zero",
            stacklevel=3,
        )
        # As in DeePMD-kit: if two rows or more are missing, the cubic and the table end at the last but one.
        more = more if more[-1, 0] / step - last / step < 2 else more[:-1]
        x = ((more[:, 0] - last) / (more[-1, 0] - last))[:, None]
        # Its slope there is the difference of the last two rows, not divided by the step.
        slope = (rows[-1, 1:] - rows[-2, 1:]) * (more[-1, 0] - last)
        more[:, 1:] = (1 - x) ** 2 * ((1 + 2 * x) * rows[-1, 1:] + x * slope)
    return np.concatenate([rows, more])


def _cubics(rows: np.ndarray, step: float, ntypes: int) -> np.ndarray:
    """The coefficients of a `Table`, of splines with slope zero at both ends."""
    values = rows[:, 1:]
    slopes = _spline_slopes(rows[:, 0], values) * step
    v, w, s, t = values[:-1], values[1:], slopes[:-1], slopes[1:]
    pairs = np.stack([2 * v - 2 * w + s + t, -3 * v + 3 * w - 2 * s - t, s, v], axis=-1)  # (n, pairs, 4)
    coefficients = np.empty((ntypes, ntypes, len(pairs), 4))
    for pair, (a, b) in enumerate(zip(*np.triu_indices(ntypes), strict=True)):
        coefficients[a, b] = coefficients[b, a] = pairs[:, pair]
    return coefficients


def _spline_slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the cubic splines through y (n, m) at x (n,) with slope zero at both ends, at x: (n, m)."""
    h, slopes = np.diff(x), np.zeros_like(y)
    secants = np.diff(y, axis=0) / h[:, None]
    # Row i: h[i] s[i-1] + 2 (h[i-1] + h[i]) s[i] + h[i-1] s[i+1] = right[i]; elimination downwards, then upwards.
    factor, right = np.zeros(len(x)), np.zeros_like(y)
    for i in range(1, len(x) - 1):
        pivot = 2 * (h[i - 1] + h[i]) - h[i] * factor[i - 1]
        factor[i] = h[i - 1] / pivot
        right[i] = (3 * (h[i] * secants[i - 1] + h[i - 1] * secants[i]) - h[i] * right[i - 1]) / pivot
    for i in range(len(x) - 2, 0, -1):
        slopes[i] = right[i] - factor[i] * slopes[i + 1]
    return slopes
