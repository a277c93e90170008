"""Models without training, for timings and self tests."""

import torch

from mdops.models import DescriptorFitting
from mdops.models.ener import EnergyFitting, EnergyFittingOptions
from mdops.models.net_fitting import Parameters
from mdops.models.se_e2_a import SeE2A, SeE2AOptions
from mdops.models.standard import StandardOptions
from mdops.nn.net import Layer, Net, NetCollection
from mdops.potential import Potential


def sample_model(
    sel: tuple[int, int],
    cutoff: float,
    embedding: tuple[int, ...],
    axis: int,
    fitting: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    *,
    activation: str = "tanh",
    fparam: int = 0,
) -> Potential:
    """A model of O and H whose weights follow from a formula and are the same on every machine; cutoff in A.
    `activation` is the fitting nets', `fparam` their number of frame parameters."""

    def layer(inputs: int, outputs: int, function: str, seed: int) -> Layer:
        numbers = torch.arange(inputs * outputs, dtype=torch.float64)
        weight = torch.sin(1.3 * numbers + seed).reshape(inputs, outputs) / inputs**0.5
        bias = 0.1 * torch.cos(torch.arange(outputs, dtype=torch.float64) + seed)
        return Layer(weight.to(dtype), bias.to(dtype), None, function, residual=inputs > 1)

    def net(inputs: int, widths: tuple[int, ...], seed: int, final: bool) -> Net:
        sizes = (inputs, *widths)
        function = activation if final else "tanh"
        layers = [
            layer(a, b, function, seed + k) for k, (a, b) in enumerate(zip(sizes, widths, strict=False))
        ]
        return Net([*layers, layer(widths[-1], 1, "linear", seed + 9)] if final else layers)

    types = ["O", "H"]
    descriptor = SeE2A(
        SeE2AOptions(
            sel=list(sel),
            rcut=cutoff,
            rcut_smth=cutoff / 12,
            neuron=list(embedding),
            axis_neuron=axis,
            type_one_side=True,
        ),
        types,
        torch.full((2,), 0.03, dtype=dtype),
        torch.tensor([[0.1, 0.07]] * 2, dtype=dtype),
        NetCollection([net(1, embedding, seed, final=False) for seed in (0, 10)], 1, 2, "embedding_network"),
    )
    nothing = torch.empty(0, dtype=dtype)
    zeros = torch.zeros(2, dtype=torch.float64)
    energies = EnergyFitting(
        EnergyFittingOptions(neuron=list(fitting), activation_function=activation, numb_fparam=fparam),
        types,
        NetCollection(
            [net(embedding[-1] * axis + fparam, fitting, seed, final=True) for seed in (20, 40)],
            1,
            2,
            "fitting_network",
        ),
        zeros,
        Parameters("fparam", torch.zeros(fparam, dtype=dtype), torch.ones(fparam, dtype=dtype)),
        Parameters("aparam", nothing, nothing),
        nothing,
    )
    options = StandardOptions(type_map=types, descriptor=descriptor.options, fitting_net=energies.options)
    model = DescriptorFitting(options, types, zeros, zeros.clone(), descriptor, energies)
    return Potential(model, overflow="extend").eval()


def water_model(dtype: torch.dtype, *, spline: bool = True, r_min: float | None = None) -> Potential:
    """The standard net for water: 25-50-100, axis 16, fitting 240-240-240, cutoff 6 A."""
    model = sample_model((46, 92), 6.0, (25, 50, 100), 16, (240, 240, 240), dtype)
    if spline:
        model.use_spline(r_min)
    return model
