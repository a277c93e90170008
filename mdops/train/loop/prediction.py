"""Energies, forces and virials of a batch, with a graph to the weights for a loss (training.md, "A step")."""

import torch

from mdops.data.batch import Batch
from mdops.models.neighborhood import NeighborReport
from mdops.potential import Potential
from mdops.train.loop.hessian import differences
from mdops.train.loss import Loss


def predict(
    potential: Potential,
    batch: Batch,
    create_graph: bool = True,
    *,
    loss: Loss | None = None,
    check: bool = True,
) -> dict[str, torch.Tensor]:
    """energy (S,), atom_energy (N,), forces (N, 3) and virial (S, 3, 3) of a batch, from its lists.

    With `create_graph` all are differentiable in the weights. Parameters in the data that the model does not take
    are left out. With a `loss` of Hessians hessian (P, 3, 3), too (`Dataset.labels`), if the
    batch has them. Without `check`, neighbours are not checked (`check_frames` was called before).
    """
    batch = batch.taken_by(potential)
    parts = batch.system, batch.neighbors, batch.fparam, batch.aparam
    if create_graph:
        found = potential.predict(*parts, check=check)
    else:
        with torch.no_grad():
            answers, _ = potential.evaluator("differentiate")(*parts)
        found = potential.with_sums(answers, batch.system)
    if loss is not None and "hessian" in loss.terms:
        found["hessian"] = found["forces"].new_zeros(0, 3, 3, dtype=torch.float64)
        if "hessian" in batch.labels:
            # Reports need no graph to the weights: `differences` gives the same numbers.
            with torch.set_grad_enabled(create_graph):
                found["hessian"] = differences(potential, batch)
    return found


@torch.no_grad()
def check_frames(potential: Potential, batch: Batch) -> NeighborReport:
    """Raises and warns like `predict`; returns the neighbour counts."""
    own = batch.taken_by(potential)
    report: NeighborReport
    _, report = potential.evaluator("train")(own.system, own.neighbors, own.fparam, own.aparam)
    return report
