"""The contents of a model file, and the names of kinds of models in messages."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ModelFile:
    """A model as it was found in a file.

    Attributes:
        model: DeePMD-kit's serialised model: nested dicts and lists of plain values. Every dict that has
            weights keeps them as NumPy arrays (or None) in its "@variables". Lengths are in A, energies in
            eV.
        source: where it came from: "format" always; "software", "version", "time", "backend", "min_nbor_dist"
            (A), "model_def_script" (the training input's model section), "train_infos", "compressed" where
            the file has them; "modifier": the section of that name of the definition, of charges beyond the cutoff
            (mdops.long_range); after a training with mdops also "training" ("step" of "steps") and "began_with"
            (software, version and format of the model it began with).
    """

    model: dict[str, Any]
    source: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelKind:
    """The types of a model's parts, as DeePMD-kit names them; "unknown" where the tree does not say."""

    model: str
    descriptor: str
    fitting: str

    def __str__(self) -> str:
        return f"a {self.model} model with descriptor {self.descriptor} and fitting {self.fitting}"


def describe(model_tree: dict[str, Any]) -> ModelKind:
    """Name the type of a model, of its descriptor and of its fitting.

    A hybrid descriptor is named with its parts, as in "hybrid(se_e2_a, se_e2_r)"; a model that combines
    others is named with their number, and its parts' types are joined by " + ". A pair table is its own descriptor, and
    its fitting is "none".
    """
    kind = str(model_tree.get("type", "unknown"))
    parts = [part for part in _parts(model_tree) if isinstance(part, dict)]
    if parts:
        kinds = [describe(part) for part in parts]
        return ModelKind(
            f"{kind} (of {len(kinds)})",
            " + ".join(k.descriptor for k in kinds),
            " + ".join(k.fitting for k in kinds),
        )
    if kind == "pairtab":
        return ModelKind(kind, kind, "none")
    return ModelKind(kind, _descriptor_type(model_tree.get("descriptor")), _type(model_tree.get("fitting")))


def _parts(model_tree: dict[str, Any]) -> list[Any]:
    """The models in a spin, a ZBL or a linear model."""
    if "backbone_model" in model_tree:
        return [model_tree["backbone_model"]]
    models = model_tree.get("models")
    return models if isinstance(models, list) else []


def _type(node: Any) -> str:
    return str(node.get("type", "unknown")) if isinstance(node, dict) else "unknown"


def _descriptor_type(node: Any) -> str:
    name = _type(node)
    if name == "hybrid" and isinstance(node.get("list"), list):
        return f"hybrid({', '.join(_descriptor_type(part) for part in node['list'])})"
    return name
