"""The descriptor se_e2_a (DeepPot-SE with radial and angular information, two-body embedding)."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from mdops.nn.activation import is_smooth
from mdops.nn.net import Layer, Net


class SeE2A(nn.Module):
    """D_i = T^T T_<, (M, M2) flattened, from T_i = (1/N_sel) sum_t sum_{j in t} R_j (x) G_{c t}(s_j).

    R_j is the normalised row of the environment matrix of neighbour j, s_j its first entry, c the type of
    the centre and t that of the neighbour; T_< are the first M2 columns of T (4, M). DeePMD-kit pads the
    neighbours of each type to sel_t with absent ones (row ((0 - mean)/std, 0, 0, 0)); they count, and are
    added analytically.
    Source: Zhang et al., NeurIPS 2018 (arXiv:1805.09003).

    Attributes:
        cutoff, cutoff_smooth: A; the switch goes from 1 to 0 between them.
        sel: neighbours of each type, and their sum is N_sel; `places` is the same as an int32 tensor.
        protection: A, added to r in the denominators.
        axis_neuron: M2.
        mean: (ntypes,), of the first entry of the rows of a centre's type.
        std: (ntypes, 2), of the first entry and of the others.
        pair_mask: (ntypes, ntypes) bool, True where centre and neighbour do not see each other.
        zeroed: (ntypes, ntypes) bool, part of `pair_mask`. DeePMD-kit has two ways to leave a pair of types
            out. The descriptor's `exclude_types` set the rows of such neighbours to zero, but the neighbours
            still take their places among the sel_t (they are no padding): `zeroed`. The model's
            `pair_exclude_types` turn them into absent ones. The two differ where the mean is not zero.
        smoothing: for trainings with splines, the weight of the nets' bending beside the loss (`nn.spline`).
    """

    mean: torch.Tensor
    std: torch.Tensor
    places: torch.Tensor
    pair_mask: torch.Tensor
    zeroed: torch.Tensor

    def __init__(
        self,
        nets: Sequence[Net],
        mean: torch.Tensor,
        std: torch.Tensor,
        *,
        cutoff: float,
        cutoff_smooth: float,
        sel: Sequence[int],
        axis_neuron: int,
        type_one_side: bool,
        protection: float = 0.0,
        exclude_types: Iterable[Sequence[int]] = (),
        absent_types: Iterable[Sequence[int]] = (),
    ) -> None:
        """Takes one net a neighbour type, or (not `type_one_side`) net centre + ntypes * neighbour.

        `exclude_types` are the descriptor's, `absent_types` the model's pair_exclude_types.
        """
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.cutoff, self.cutoff_smooth, self.protection = cutoff, cutoff_smooth, protection
        self.sel, self.axis_neuron, self.type_one_side = list(sel), axis_neuron, type_one_side
        excluded, absent = pair_matrix(exclude_types, self.ntypes), pair_matrix(absent_types, self.ntypes)
        self.register_buffer("places", torch.tensor(self.sel, dtype=torch.int32), persistent=False)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("pair_mask", excluded | absent)
        self.register_buffer("zeroed", excluded & ~absent)
        self.has_masked = bool(self.pair_mask.any())
        self.smoothing = 0.0

    @property
    def ntypes(self) -> int:
        return len(self.sel)

    @property
    def slots(self) -> int:
        """N_sel."""
        return sum(self.sel)

    @property
    def width(self) -> int:
        """M, the width of the embedding."""
        return self.net(0, 0).outputs

    @property
    def is_smooth(self) -> bool:
        """Whether no embedding net has kinks."""
        return all(is_smooth(m.activation_name) for m in self.nets.modules() if isinstance(m, Layer))

    def net(self, centre: int, neighbor: int) -> Net:
        """The embedding net of a pair of types; its input is (w/(r + p) - mean)/std of the centre's type."""
        net = self.nets[neighbor if self.type_one_side else centre + self.ntypes * neighbor]
        assert isinstance(net, Net)
        return net

    def masked(self, types: torch.Tensor) -> torch.Tensor:
        """(N, ntypes) bool: the neighbour types that centres of `types` (N,) do not see."""
        return self.pair_mask[types.long().clamp(min=0)]

    def absent(self, within: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """(N, ntypes): absent neighbours of each type, when `within` (N, ntypes) are within the cutoff."""
        invisible = (self.pair_mask & ~self.zeroed)[types.long().clamp(min=0)]
        return torch.tensor(self.sel, device=within.device) - within * ~invisible

    def padding(self, absent: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """(N, 4, M): what absent neighbours, (N, ntypes) of them, add to T of centres of `types` (N,)."""
        s = -self.mean / self.std[:, 0]
        kinds = range(self.ntypes)
        one = torch.stack(
            [torch.stack([s[c] * self.net(c, t)(s[c : c + 1]) for t in kinds]) for c in kinds]
        )  # (ntypes, ntypes, M): of one, for each centre and neighbour
        first = torch.einsum("nt,ntm->nm", absent.to(one.dtype), one[types.long().clamp(min=0)])
        return torch.nn.functional.pad(first[:, None], (0, 0, 0, 3)) / self.slots

    def forward(self, moments: torch.Tensor) -> torch.Tensor:
        """D (N, M * M2) from T (N, 4, M)."""
        d = moments.transpose(1, 2) @ moments[:, :, : self.axis_neuron]
        return d.flatten(1)


def pair_matrix(pairs: Iterable[Sequence[int]], ntypes: int) -> torch.Tensor:
    """(ntypes, ntypes) bool, True at each pair and its mirror image."""
    mask = torch.zeros(ntypes, ntypes, dtype=torch.bool)
    for a, b in pairs:
        mask[a, b] = mask[b, a] = True
    return mask
