"""What a training of low-rank adapters trains of DPA-4, as in DeePMD-kit."""

from torch import nn

from mdops.nn.equivariant.gate import Gate
from mdops.nn.equivariant.linear import DegreeLinear, OrderLinear

# Parts that are trained, all but `_KEPT`, and names of other weights that are trained. So are all biases.
_PARTS = {
    *("env_seed_embedding", "radial_embedding", "radial_hidden_proj"),
    *("film_scale_norm", "film_shift_norm", "focus_compete_norm"),
    *("attn_q_proj", "attn_k_proj", "attn_qk_norm", "attn_output_gate_norm"),
    *("final_full_attn_res", "final_block_attn_res", "so2_layer_attn_res"),
    *("full_attn_res_so2", "full_attn_res_ffns", "block_attn_res_so2", "block_attn_res_ffns"),
}
_WEIGHTS = {
    *("adam_scale", "adam_so2_layer_scales", "adam_ffn_layer_scales"),
    *("film_scale_strength_log", "film_shift_strength_log"),
    *("adamw_attn_logit_w", "adamw_attn_gate_w", "adamw_focus_compete_w", "adamw_pseudo_query"),
}
_KEPT = {"adam_type_embedding", "adam_freqs"}


def set_adapted(descriptor: nn.Module) -> list[nn.Parameter]:
    """Freezes the other weights; returns those that get adapters, the products by degree and by order."""
    for name, weight in descriptor.named_parameters():
        *parts, own = (part for part in name.split(".") if not part.isdigit())
        is_trained = not _PARTS.isdisjoint(parts) or own in _WEIGHTS or "bias" in own
        weight.requires_grad_(is_trained and own not in _KEPT)
    adapted: list[nn.Parameter] = []
    for part in descriptor.modules():
        if isinstance(part, Gate):
            part.requires_grad_(False)
        elif isinstance(part, DegreeLinear):
            adapted.append(part.weight)
        elif isinstance(part, OrderLinear):
            adapted += [part.weight_m0, *part.weight_m]
    for weight in adapted:
        weight.requires_grad_(True)
    return adapted
