"""A model on the atoms of one process and their ghosts: DeePMD-kit's answers, and no work for ghosts."""

import itertools
import warnings

import pytest
import torch
from reference_cases import DATA, assert_close, references

import mdops
from mdops.domain import Communication, Domain
from mdops.errors import UnsupportedModelError
from mdops.evaluators.autograd import Autograd
from mdops.ops import NeighborList

KINDS = DATA.parent / "reference_kinds"
LOCAL = (
    *("se_e2_r_base", "se_e3_base", "se_atten_v2_attention", "dpa4c_base"),
    *("hybrid_a_r", "linear_nets_sum", "linear_tables_mean"),
)
PASSING = "dpa2_base", "dpa3_base", "dpa3_charged", "dpa4_base"  # messages


def with_ghosts(own, cell, cutoff):
    """Positions (N + M, 3), and of which atom (N + M,) each is: periodic atoms (N, 3) in their cell, and their images
    that are within the cutoff of any."""
    height = cell.det().abs() / torch.linalg.cross(cell[[1, 2, 0]], cell[[2, 0, 1]]).norm(dim=1)
    inside = (own @ cell.inverse()).floor() @ cell
    reach = [range(-n, n + 1) for n in (cutoff / height).ceil().int().tolist()]
    atoms = torch.arange(len(own))
    positions, sources = [own - inside], [atoms]
    for shift in itertools.product(*reach):
        if any(shift):
            images = positions[0] + torch.tensor(shift, dtype=own.dtype) @ cell
            near = torch.cdist(images, positions[0]).amin(1) < cutoff
            positions.append(images[near])
            sources.append(atoms[near])
    return torch.cat(positions), torch.cat(sources)


def listed(near, types, cutoff):
    """The neighbours that `near` (N, N + M) marks, with rows of ghosts, which are empty."""
    rows = [torch.nonzero(row)[:, 0] for row in near]
    rows = [row[types[row].argsort(stable=True)] for row in rows]
    found = torch.full((len(types), max(map(len, rows))), -1, dtype=torch.int32)
    counts = torch.zeros(len(types), 2, dtype=torch.int32)
    for i, row in enumerate(rows):
        found[i, : len(row)] = row
        counts[i] = torch.bincount(types[row], minlength=2)
    return NeighborList(found, torch.zeros_like(found), counts, cutoff)


def test_a_model_that_knows_its_systems_first_atom_is_refused():
    potential = mdops.load(KINDS / "dpa1_rough" / "model.dp", dtype="float64")
    one = next(one for one in references(KINDS / "dpa1_rough") if one.system.pbc.all())
    with pytest.raises(UnsupportedModelError, match="the type of a system's first atom"):
        answers(potential, one)


def answers(potential, one):
    """Of the first frame of a reference, as if a program had cut nothing and made ghosts of its images."""
    atoms = one.system.positions[one.system.batch == 0].shape[0]
    positions, sources = with_ghosts(one.system.positions[:atoms], one.system.cell[0], potential.cutoff)
    domain = Domain(potential)
    types = one.system.types[sources]
    near = torch.cdist(positions[:atoms], positions) < potential.cutoff
    near[torch.arange(atoms), torch.arange(atoms)] = False
    to_atoms = lambda rows: rows.new_zeros(atoms, rows.shape[1]).index_add(0, sources, rows)  # noqa: E731
    communication = Communication(lambda rows: rows[sources], to_atoms)
    near = listed(near, types, potential.cutoff)
    found = domain(positions, types, near, atoms, communication, atom_virial=True)
    forces, of_atoms = to_atoms(found.forces), to_atoms(found.atom_virial.flatten(1)).view(-1, 3, 3)
    return {
        "atom_energy": found.energy,
        "forces": forces,
        "virial": found.virial,
        "atom_virial": of_atoms,
    }


@pytest.mark.parametrize("case", [*LOCAL, *PASSING])
def test_a_domain_has_the_answers_of_the_whole_and_computes_no_ghosts(case, monkeypatch):
    seen, run = [], Autograd._run

    def noted(self, near, step):
        seen.append(near.system.atoms)
        return run(self, near, step)

    monkeypatch.setattr(Autograd, "_run", noted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        potential = mdops.load(KINDS / case / "model.dp", dtype="float64")
    one = next(one for one in references(KINDS / case) if one.system.pbc.all())
    atoms = int((one.system.batch == 0).sum())
    wanted = {
        name: one.answers[name][: 1 if name == "virial" else atoms]
        for name in ("atom_energy", "forces", "virial")
    }
    found, ran = answers(potential, one), seen[-1]
    assert_close(found, wanted, 1e-7, wanted)
    own = potential.evaluate(one.system, None, one.fparam, one.aparam, atom_virial=True)
    assert_close(found, {"atom_virial": own["atom_virial"][:atoms]}, 1e-7, ["atom_virial"])
    assert case in PASSING or ran <= atoms
