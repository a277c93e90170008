"""Makes the tree of attention layers from a PyTorch state dict."""

from mdops.io.torch.nets import layer_tree
from mdops.io.torch.state import State, Tree
from mdops.models.dpa1 import attention_node


def attention_tree(state: State, options: Tree, trainable: bool) -> Tree:
    """The node of the attention layers; `options` are those of the descriptor's node."""
    shared, precision = attention_node(options, sum(options["sel"])), options["precision"]
    norm = {"trainable_ln": options["trainable_ln"], "ln_eps": options["ln_eps"], "precision": precision}
    linear: Tree = {"activation": "none", "resnet": False, "precision": precision, "trainable": trainable}

    def layer(part: State) -> Tree:
        inner, layer_norm = part.below("attention_layer"), part.below("attn_layer_norm")
        return {
            **shared,
            **norm,
            "attention_layer": {
                **shared,
                "num_heads": 1,
                "bias": "in_proj.bias" in inner.tensors,
                "smooth": options.get("smooth_type_embedding", True),
                "precision": precision,
                "in_proj": layer_tree(inner.below("in_proj"), **linear),
                "out_proj": layer_tree(inner.below("out_proj"), **linear),
            },
            "attn_layer_norm": {
                "@class": "LayerNorm",
                "@version": 1,
                "eps": options["ln_eps"],
                "trainable": options["trainable_ln"],
                "precision": precision,
                "@variables": {"w": layer_norm.required("matrix"), "b": layer_norm.array("bias")},
            },
        }

    layers = [layer(state.below(str(i))) for i in range(options["attn_layer"])]
    head = {"@class": "NeighborGatedAttention", "@version": 1, "layer_num": options["attn_layer"]}
    return {**head, **shared, **norm, "attention_layers": layers}
