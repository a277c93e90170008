"""Writes harmonics.npz: e3nn's harmonics and Wigner matrices, for tests/nn/test_equivariant.py.

PYTHON tests/data/make_harmonics.py, with the Python of an environment with e3nn (0.6.0 was used).

e3nn's polar axis is y, and it has no phase of Condon and Shortley. So it gets (y, z, x) for mdops' (x, y, z), and
coefficients of odd m change their signs.
"""

import math
from pathlib import Path

import numpy as np
import torch
from e3nn import o3

LMAX = 6


def main() -> None:
    torch.set_default_dtype(torch.float64)  # e3nn's generators of rotations have it
    random = np.random.default_rng(0)
    axes = [sign * np.eye(3)[k] for k in range(3) for sign in (1, -1)]
    vectors = torch.from_numpy(np.vstack([*axes, random.normal(size=(3, 3))]))
    # About z, about y, about z again (of mdops); some about one axis alone.
    half, quarter = math.pi, math.pi / 2
    angles = torch.tensor(
        [[0.3, 0, 0], [0, half, 0], [quarter, quarter, 0], [1.1, 2.3, -0.7], [-2.0, 0.4, 3.0]]
    )
    harmonics, matrices = [], {}
    for degree in range(LMAX + 1):
        signs = torch.tensor([(-1.0) ** m for m in range(-degree, degree + 1)])
        given = vectors[:, [1, 2, 0]]
        own = o3.spherical_harmonics(degree, given, normalize=True, normalization="norm")
        harmonics.append(own * signs)
        matrices[f"matrix_{degree}"] = signs[:, None] * o3.wigner_D(degree, *angles.unbind(1)) * signs
    path = Path(__file__).parent / "harmonics.npz"
    np.savez_compressed(path, vectors=vectors, angles=angles, harmonics=torch.cat(harmonics, 1), **matrices)


if __name__ == "__main__":
    main()
