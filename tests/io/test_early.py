"""PyTorch files of DPA-1 from before DeePMD-kit 3.0: other names, a table of type embeddings, no biases of outputs."""

import re

import pytest
import torch
from ase import Atoms
from trees import CHECKPOINTS

import mdops
from mdops.calculator import MDOps
from mdops.errors import ModelFileError, UnsupportedModelError
from mdops.io import read_model

TABLE = "model.Default.atomic_model.descriptor.type_embedding.embedding.weight"
EMBEDDING = TABLE.replace("weight", "embedding_net.layers.0.matrix")


def today():
    """checkpoints/dpa1.pt with statistics that can be run: one for all slots."""
    checkpoint = torch.load(CHECKPOINTS / "dpa1.pt", weights_only=True)
    for name, value in {"mean": 0.1, "stddev": 0.7}.items():
        tensor = checkpoint["model"][f"model.Default.atomic_model.descriptor.se_atten.{name}"]
        tensor[:] = value if name == "stddev" else torch.tensor([value, 0, 0, 0])
    return checkpoint


def early(path, edit=lambda params, state: None):
    """Write the model of checkpoints/dpa1.pt as an early version did; its biases of outputs go to the fitting's."""
    checkpoint = today()
    state = checkpoint["model"]
    bias = state.pop("model.Default.atomic_model.out_bias")[0]
    state["model.Default.atomic_model.fitting_net.bias_atom_e"] += bias
    del state["model.Default.atomic_model.out_std"]
    # Two types and four numbers: today's layer adds the type to each half of its vector.
    table = state.pop(EMBEDDING) + torch.cat([torch.eye(2, dtype=torch.float64)] * 2, 1)
    state[TABLE] = torch.cat([table, torch.zeros(1, 4, dtype=torch.float64)])
    for name in [n for n in state if "se_atten." in n]:
        old = re.sub(r"(filter_layers)\._?networks\.(\d+)\.layers", r"\1.\2.deep_layers", name)
        value = state.pop(name)
        two = name.endswith(".bias") and "norm" not in name
        state[old.replace("norm.matrix", "norm.weight")] = value[None] if two else value
    params = state["_extra_state"]["model_params"]
    params["descriptor"]["precision"] = "float32"  # which those versions did not heed
    edit(params["descriptor"], state)
    torch.save(checkpoint, path)
    return path


def test_it_gives_the_energies_of_the_same_model(tmp_path):
    atoms = Atoms(
        "OHHOH", [[0, 0, 0], [1, 0, 0.1], [0, 1, 0], [2.5, 0.3, 1], [3, 1, 0.5]], cell=[7] * 3, pbc=True
    )
    torch.save(today(), tmp_path / "today.pt")
    answers = []
    for path in (tmp_path / "today.pt", early(tmp_path / "early.pt")):
        atoms.calc = MDOps(mdops.load(path, dtype="float64", spline=False))
        answers.append((atoms.get_potential_energy(), atoms.get_forces()))
    (energy, forces), (early_energy, early_forces) = answers
    assert early_energy == pytest.approx(energy, rel=1e-12)
    assert early_forces == pytest.approx(forces, abs=1e-12 * abs(forces).max())


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (lambda p, s: p.update(post_ln=False), UnsupportedModelError, "post_ln False"),
        (lambda p, s: p.update(attn_mask=True), UnsupportedModelError, "attn_mask True"),
        (lambda p, s: p.update(activation_function="gelu"), UnsupportedModelError, "other than tanh"),
        (lambda p, s: s.update({TABLE: s[TABLE][1:]}), ModelFileError, "expected 3 rows"),
    ],
)
def test_what_later_versions_lack_is_refused_by_name(tmp_path, edit, error, message):
    with pytest.raises(error, match=message):
        read_model(early(tmp_path / "m.pt", edit))


def test_one_of_the_biases_of_outputs_may_not_be_missing(tmp_path):
    checkpoint = torch.load(CHECKPOINTS / "dpa1.pt", weights_only=True)
    del checkpoint["model"]["model.Default.atomic_model.out_bias"]
    torch.save(checkpoint, tmp_path / "m.pt")
    with pytest.raises(ModelFileError, match="out_bias are missing"):
        read_model(tmp_path / "m.pt")
