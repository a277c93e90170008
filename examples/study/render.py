"""A picture of atoms as lit spheres in perspective, by ray casting into a depth buffer, with NumPy only."""

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.data.colors import jmol_colors

LIGHT = np.array([-0.45, 0.55, 0.70])  # direction to the light; x right, y up, z to the viewer
COLORS = {
    "Cu": (0.85, 0.45, 0.22),
    "Al": (0.68, 0.74, 0.82),
    "H": (0.93, 0.93, 0.93),
    "C": (0.32, 0.35, 0.40),
}
EDGE_COLOR = (0.25, 0.30, 0.38)
DISTANCE = 3.5  # of the camera, in radii of the scene

Sphere = tuple[np.ndarray, float, tuple[float, float, float]]  # centre, radius (A), colour


def render(
    atoms: Atoms, pixels: int = 720, *, turn: float = 25.0, tilt: float = 18.0, scale: float = 0.75
) -> np.ndarray:
    """An RGBA image (pixels, pixels, 4) in 0 .. 1; angles in degrees, spheres of `scale` covalent radii."""
    spheres = [
        *_atom_spheres(atoms, scale),
        *(_cell_spheres(atoms) if atoms.pbc.any() else _bond_spheres(atoms)),
    ]
    centers = np.array([center for center, _, _ in spheres])
    centers = centers @ _rotation(turn, tilt).T
    centers -= (centers.min(0) + centers.max(0)) / 2
    size = max(np.linalg.norm(c) + r for c, (_, r, _) in zip(centers, spheres, strict=True))
    fine = 2 * pixels  # each pixel is the mean of four
    depth, image = np.full((fine, fine), -np.inf), np.zeros((fine, fine, 4))
    for center, (_, radius, color) in zip(centers, spheres, strict=True):
        _draw(depth, image, center / size, radius / size, np.array(color))
    return image.reshape(pixels, 2, pixels, 2, 4).mean((1, 3))


def _rotation(turn: float, tilt: float) -> np.ndarray:
    """Rotation by `turn` about the vertical (the y axis of the picture, z of the atoms), then a tilt to the viewer."""
    a, b = np.radians(turn), np.radians(tilt)
    upright = np.array([[np.cos(a), np.sin(a), 0], [0, 0, 1], [np.sin(a), -np.cos(a), 0]])
    return np.array([[1, 0, 0], [0, np.cos(b), -np.sin(b)], [0, np.sin(b), np.cos(b)]]) @ upright


def _draw(depth: np.ndarray, image: np.ndarray, center: np.ndarray, radius: float, color: np.ndarray) -> None:
    """Draws the visible part of a sphere; the scene has radius 1. Perspective moves and scales whole spheres."""
    near = DISTANCE / (DISTANCE - center[2])
    pixels = len(depth) / 2
    x, y, r = near * center[0], near * center[1], near * radius
    zoom = pixels * 1.02
    columns = np.arange(
        max(int(pixels + zoom * (x - r)), 0), min(int(pixels + zoom * (x + r)) + 2, 2 * int(pixels))
    )
    rows = np.arange(
        max(int(pixels - zoom * (y + r)), 0), min(int(pixels - zoom * (y - r)) + 2, 2 * int(pixels))
    )
    if not columns.size or not rows.size:
        return
    u = ((columns - pixels) / zoom - x)[None, :] / r  # normal vector (u, v, w) of the point seen
    v = ((pixels - rows) / zoom - y)[:, None] / r
    w = np.sqrt(np.maximum(1 - u * u - v * v, 0))
    height = center[2] + radius * w
    window = np.ix_(rows, columns)
    front = (u * u + v * v < 1) & (height > depth[window])
    light = LIGHT / np.linalg.norm(LIGHT)
    diffuse = np.maximum(light[0] * u + light[1] * v + light[2] * w, 0)
    shine = np.maximum(2 * diffuse * w - light[2], 0) ** 24  # Phong: the mirrored light against the view
    fog = np.clip(0.25 - 0.35 * height, 0, 0.5)[..., None]  # distant parts fade to white
    rgb = color * (0.35 + 0.70 * diffuse[..., None]) + 0.35 * shine[..., None]
    rgb = np.clip(rgb * (1 - fog) + fog, 0, 1)
    depth[window] = np.where(front, height, depth[window])
    image[window] = np.where(front[..., None], np.concatenate([rgb, np.ones_like(fog)], -1), image[window])


def _atom_spheres(atoms: Atoms, scale: float) -> list[Sphere]:
    """The atoms; those of a crystal are wrapped into the cell."""
    atoms = atoms.copy()
    atoms.wrap(eps=0.05)
    return [
        (
            atom.position,
            scale * covalent_radii[atom.number],
            COLORS.get(atom.symbol, tuple(jmol_colors[atom.number])),
        )
        for atom in atoms
    ]


def _cell_spheres(atoms: Atoms) -> list[Sphere]:
    """The twelve edges of the cell."""
    corners = np.array([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
    ends = [(a, b) for a in corners for b in corners if (b - a).min() == 0 and (b - a).sum() == 1]
    width = 0.008 * atoms.cell.lengths().max()
    return [s for a, b in ends for s in _stick(a @ atoms.cell.array, b @ atoms.cell.array, width, EDGE_COLOR)]


def _bond_spheres(atoms: Atoms) -> list[Sphere]:
    """Sticks between atoms closer than 1.25 times the sum of their covalent radii."""
    radii, spheres = covalent_radii[atoms.numbers], []
    for i, j in np.argwhere(np.triu(atoms.get_all_distances() < 1.25 * (radii[:, None] + radii), 1)):
        spheres += _stick(atoms.positions[i], atoms.positions[j], 0.12, EDGE_COLOR)
    return spheres


def _stick(
    start: np.ndarray, end: np.ndarray, radius: float, color: tuple[float, float, float]
) -> list[Sphere]:
    """A chain of spheres, dense enough to look like a cylinder."""
    count = int(np.linalg.norm(end - start) / (0.3 * radius)) + 2
    return [(start + t * (end - start), radius, color) for t in np.linspace(0, 1, count)]
