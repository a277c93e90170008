"""Energies, forces and virials of a batch, with a graph to the weights for a loss (training.md, "A step")."""

import torch

from mdops.data.batch import Batch
from mdops.models.neighborhood import NeighborReport
from mdops.potential import Potential


def predict(potential: Potential, batch: Batch, create_graph: bool = True) -> dict[str, torch.Tensor]:
    """energy (S,), atom_energy (N,), forces (N, 3) and virial (S, 3, 3) of a batch, from its lists.

    With `create_graph` all are differentiable in the weights. Parameters in the data that the model does not take
    are left out. While CUDA kernels are captured neighbours are not judged: who captures has called `check_frames`.
    """
    batch = batch.taken_by(potential)
    parts = batch.system, batch.neighbors, batch.fparam, batch.aparam
    if create_graph:
        captured = potential.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return potential.predict(*parts, check=not captured)
    with torch.no_grad():
        answers, _ = potential.evaluator("differentiate")(*parts)
    return potential.with_sums(answers, batch.system)


@torch.no_grad()
def check_frames(potential: Potential, batch: Batch) -> NeighborReport:
    """Refuses and warns of what `predict` does; what there is of neighbours."""
    own = batch.taken_by(potential)
    report: NeighborReport
    _, report = potential.evaluator("train")(own.system, own.neighbors, own.fparam, own.aparam)
    return report
