"""Real solid harmonics of the degrees 2 to 4: what DPA-1 with `lmax` sums over neighbours beside the environment
matrix."""

import math

import torch

MOST_DEGREES = 4


def solid_harmonics(u: torch.Tensor, lmax: int) -> torch.Tensor:
    """Of the degrees 2 to lmax of vectors u (E, 3), m from -l to l: (E, (lmax + 1)^2 - 4).

    Homogeneous polynomials with Racah's normalisation, sum_m Y_lm(u)^2 = |u|^(2 l): with the factors of T. Helgaker, P.
    Jorgensen and J. Olsen, Molecular Electronic-Structure Theory (2000), 6.4. The order of m is DeePMD-kit's.
    """
    x, y, z = u.unbind(1)
    xx, yy, zz = x * x, y * y, z * z
    r2 = xx + yy + zz
    found = [
        math.sqrt(3) * x * y,
        math.sqrt(3) * y * z,
        zz - (xx + yy) / 2,
        math.sqrt(3) * x * z,
        math.sqrt(3) / 2 * (xx - yy),
    ]
    if lmax >= 3:
        found += [
            math.sqrt(5 / 8) * y * (3 * xx - yy),
            math.sqrt(15) * x * y * z,
            math.sqrt(3 / 8) * y * (5 * zz - r2),
            z * (5 * zz - 3 * r2) / 2,
            math.sqrt(3 / 8) * x * (5 * zz - r2),
            math.sqrt(15) / 2 * z * (xx - yy),
            math.sqrt(5 / 8) * x * (xx - 3 * yy),
        ]
    if lmax >= 4:
        found += [
            math.sqrt(35) / 2 * x * y * (xx - yy),
            math.sqrt(70) / 4 * y * z * (3 * xx - yy),
            math.sqrt(5) / 2 * x * y * (7 * zz - r2),
            math.sqrt(10) / 4 * y * z * (7 * zz - 3 * r2),
            (35 * zz * zz - 30 * zz * r2 + 3 * r2 * r2) / 8,
            math.sqrt(10) / 4 * x * z * (7 * zz - 3 * r2),
            math.sqrt(5) / 4 * (xx - yy) * (7 * zz - r2),
            math.sqrt(70) / 4 * x * z * (xx - 3 * yy),
            math.sqrt(35) / 8 * (xx * xx - 6 * xx * yy + yy * yy),
        ]
    return torch.stack(found, dim=1)
