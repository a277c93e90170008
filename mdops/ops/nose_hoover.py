"""The Nose-Hoover chain of a simulation at constant temperature."""

from typing import Any

import torch

from mdops.ops._register import register_fake


def nose_hoover_chain(
    eta: torch.Tensor,
    momenta: torch.Tensor,
    kinetic: torch.Tensor,
    kT: float,
    freedom: int,
    tau: float,
    time: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The chain after `time`, and what the particles' momenta are to be multiplied with.

    One link of a step exp(chain dt/2) exp(velocity Verlet dt) exp(chain dt/2), to fourth order. With masses
    Q_0 = g kT tau^2 (g degrees of freedom) and Q_j = kT tau^2, the whole conserves
    E + K + g kT eta_0 + kT sum_{j>0} eta_j + sum_j p_j^2 / (2 Q_j). Sources stand in
    source/op/nose_hoover/nose_hoover.h. Not differentiable; never waits for a GPU.

    Args:
        eta, momenta: (M,) float64, the thermostats' places and momenta (energy times time); with
            none the factor is 1.
        kinetic: () float64, of the particles.
        kT: energy.
        freedom: g.
        tau: the thermostats' time scale.
        time: half a time step.

    Returns:
        eta (M,), momenta (M,) and the factor () of the particles' momenta, float64.

    Raises:
        RuntimeError: a shape, dtype or device that does not fit, or a kT, freedom or tau that is not positive.
    """
    return torch.ops.mdops.nose_hoover_chain(eta, momenta, kinetic, kT, freedom, tau, time)


@register_fake("nose_hoover_chain")
def _(eta: Any, momenta: Any, kinetic: Any, *others: Any) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(eta), torch.empty_like(eta), torch.empty_like(kinetic)
