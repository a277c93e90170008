"""The fitting net: from a descriptor to the energy of an atom."""

from collections.abc import Sequence

import torch
from torch import nn

from mdops.errors import InputError
from mdops.nn.net import Net


class Parameters(nn.Module):
    """Frame or atomic parameters, (p - average) * inverse_deviation, in front of the fitting net."""

    average: torch.Tensor
    inverse_deviation: torch.Tensor

    def __init__(self, name: str, average: torch.Tensor, inverse_deviation: torch.Tensor) -> None:
        """`name` is "fparam" or "aparam", for messages; the others are (p,), with p 0 if there are none."""
        super().__init__()
        self.name = name
        self.register_buffer("average", average)
        self.register_buffer("inverse_deviation", inverse_deviation)

    @property
    def size(self) -> int:
        return self.average.shape[0]

    def forward(self, value: torch.Tensor | None, rows: int) -> torch.Tensor:
        """(rows, p), normalised, from a value of that shape, or of shape (p,) for one row or all.

        Raises InputError for a missing value, one of another shape, and any where the model takes none.
        """
        if self.size == 0:
            if value is not None:
                raise InputError(f"{self.name} is given, and the model takes none")
            return self.average.new_empty(rows, 0)
        if value is None:
            raise InputError(f"the model needs {self.name}, {self.size} a row, and none was given")
        value = value.to(self.average)
        if value.shape == (self.size,):
            value = value.expand(rows, -1)
        if value.shape != (rows, self.size):
            raise InputError(f"{self.name} has shape {tuple(value.shape)}, expected {(rows, self.size)}")
        return (value - self.average) * self.inverse_deviation


class EnergyFitting(nn.Module):
    """Energies of atoms: e_i = net_t(D_i, parameters) - [net_t(0, parameters)] + bias_t.

    The net is of the atom's type, or one for all types. The term in brackets is there for the types of which
    `vacuum` is True (DeePMD-kit's `atom_ener`): an atom alone then has its bias as energy if D is 0 for it.
    """

    bias: torch.Tensor
    default_fparam: torch.Tensor | None
    case_embedding: torch.Tensor

    def __init__(
        self,
        nets: Sequence[Net],
        bias: torch.Tensor,
        fparam: Parameters,
        aparam: Parameters,
        default_fparam: torch.Tensor | None,
        case_embedding: torch.Tensor,
        vacuum: Sequence[bool],
        shared: bool,
    ) -> None:
        """Takes one net a type, or one if `shared`; bias (ntypes,) float64, default_fparam (p,), and
        vacuum (ntypes,)."""
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self.shared = shared
        self.fparam, self.aparam = fparam, aparam
        self.vacuum = list(vacuum)
        self.register_buffer("bias", bias)
        self.register_buffer("default_fparam", default_fparam)
        self.register_buffer("case_embedding", case_embedding)

    def net(self, kind: int) -> Net:
        """The net of a type of atom."""
        net = self.nets[0 if self.shared else kind]
        assert isinstance(net, Net)
        return net

    def frame_parameters(self, fparam: torch.Tensor | None, systems: int) -> torch.Tensor:
        """(systems, p): the normalised frame parameters, or the default ones."""
        default = self.default_fparam if self.fparam.size else None
        return self.fparam(default if fparam is None else fparam, systems)

    @property
    def extra_size(self) -> int:
        """How many inputs the nets have besides the descriptor."""
        return self.fparam.size + self.aparam.size + self.case_embedding.shape[0]

    def extra_inputs(
        self,
        batch: torch.Tensor,
        systems: int,
        fparam: torch.Tensor | None,
        aparam: torch.Tensor | None,
    ) -> torch.Tensor:
        """(N, extra_size): what the nets see of each atom besides its descriptor; arguments as of
        `forward`."""
        atoms = batch.shape[0]
        frame = self.frame_parameters(fparam, systems)
        parts = [
            frame[batch.long()] if frame.shape[1] else frame.new_empty(atoms, 0),
            self.aparam(aparam, atoms),
            self.case_embedding.expand(atoms, -1),
        ]
        return torch.cat(parts, dim=1)

    def forward(
        self,
        descriptor: torch.Tensor,
        types: torch.Tensor,
        batch: torch.Tensor,
        systems: int,
        fparam: torch.Tensor | None = None,
        aparam: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Energies (N,) in eV, float64, without the model's own bias; 0 for virtual atoms.

        Args:
            descriptor: (N, width).
            types, batch: (N,) int32.
            systems: S.
            fparam: (S, p) or (p,); aparam: (N, q) or (q,).

        Raises:
            InputError: a parameter is missing, has another shape, or is none that the model takes.
        """
        extra = self.extra_inputs(batch, systems, fparam, aparam)
        energy = torch.zeros(types.shape[0], dtype=torch.float64, device=descriptor.device)
        for kind, vacuum in enumerate(self.vacuum):
            index = torch.nonzero(types == kind)[:, 0]
            own, net = extra[index], self.net(kind)
            out = net(torch.cat([descriptor[index], own], dim=1))[:, 0].double()
            if vacuum:
                nothing = descriptor.new_zeros(len(index), descriptor.shape[1])
                out = out - net(torch.cat([nothing, own], dim=1))[:, 0].double()
            energy = energy.index_copy(0, index, out + self.bias[kind])
        return energy
