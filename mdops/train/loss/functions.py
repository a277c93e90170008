"""Functions of errors for several losses."""

import torch

# DeePMD-kit's keys for its printed output: mdops' learning curve has the RMSE.
PRINTED = ("metric",)


def measure(error: torch.Tensor, function: str, beta: float) -> torch.Tensor:
    """Of each error u: |u| ("mae"), u^2 ("mse"), or "smooth_mae", u^2 / (2 beta) up to beta and |u| - beta/2 beyond."""
    if function == "mse":
        return error.square()
    if function == "mae":
        return error.abs()
    return torch.nn.functional.smooth_l1_loss(error, torch.zeros_like(error), reduction="none", beta=beta)
