"""Makes tests/data/charges/<kind>.npz: DeePMD-kit's answers for systems with a charge and a multiplicity each.

Of the models in tests/data/reference_kinds that have embeddings of these, and three cubes of eight atoms. Needs
deepmd-kit 3.2.0 with its PyTorch backend:

    python tests/data/make_charges.py
"""

from pathlib import Path

import numpy as np
import torch
from deepmd.dpmodel.utils.serialization import load_dp_model
from deepmd.pt.model.model import BaseModel

DATA = Path(__file__).resolve().parent
KINDS = ("dpa3_charged",)
CHARGE_SPIN = np.array([[-2.0, 3.0], [1.0, 2.0], [0.0, 1.0]])


def main() -> None:
    random = np.random.default_rng(3)
    sites = 2.4 * np.stack(np.meshgrid(*[np.arange(2)] * 3), -1).reshape(8, 3)
    coord = np.stack([sites + random.uniform(-0.2, 0.2, (8, 3)) for _ in CHARGE_SPIN])
    cell, types = np.tile(4.8 * np.eye(3), (len(coord), 1, 1)), np.array([0, 1] * 4)
    (DATA / "charges").mkdir(exist_ok=True)
    for kind in KINDS:
        model = BaseModel.deserialize(load_dp_model(DATA / "reference_kinds" / kind / "model.dp")["model"])
        given = coord, np.tile(types, (len(coord), 1)), cell.reshape(-1, 9)
        answers = model.double()(
            *(torch.from_numpy(array) for array in given), charge_spin=torch.from_numpy(CHARGE_SPIN)
        )
        answers = {name: value.detach().numpy() for name, value in answers.items()}
        np.savez_compressed(
            DATA / "charges" / f"{kind}.npz",
            positions=coord,
            cell=cell,
            types=types,
            charge_spin=CHARGE_SPIN,
            energy=answers["energy"][:, 0],
            forces=answers["force"],
            virial=answers["virial"].reshape(-1, 3, 3),
        )


if __name__ == "__main__":
    main()
