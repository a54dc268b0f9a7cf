"""Which tensors a model has, under which names: Hugging Face's and GGUF's."""

from __future__ import annotations

from compute_loop.models.config import ModelConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

_GLOBAL_GGUF = {EMBEDDING: "token_embd.weight", FINAL_NORM: "output_norm.weight", HEAD: "output.weight"}

_MODULE_GGUF = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Module of a layer, Hugging Face name -> GGUF name."""


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every tensor that the model has; a projection is ``[out, in]``."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    modules = _layer_modules(config)
    for layer in range(config.num_layers):
        for module, (shape, bias) in modules.items():
            shapes[f"model.layers.{layer}.{module}.weight"] = shape
            if bias:
                shapes[f"model.layers.{layer}.{module}.bias"] = shape[:1]
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_modules(config: ModelConfig) -> dict[str, tuple[tuple[int, ...], bool]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    modules: dict[str, tuple[tuple[int, ...], bool]] = {
        "input_layernorm": ((hidden,), False),
        "self_attn.q_proj": ((q_size, hidden), config.attention_bias),
        "self_attn.k_proj": ((kv_size, hidden), config.attention_bias),
        "self_attn.v_proj": ((kv_size, hidden), config.attention_bias),
        "self_attn.o_proj": ((hidden, q_size), config.output_bias),
        "post_attention_layernorm": ((hidden,), False),
        "mlp.gate_proj": ((inner, hidden), config.mlp_bias),
        "mlp.up_proj": ((inner, hidden), config.mlp_bias),
        "mlp.down_proj": ((hidden, inner), config.mlp_bias),
    }
    if config.qk_norm:
        modules["self_attn.q_norm"] = ((config.head_dim,), False)
        modules["self_attn.k_norm"] = ((config.head_dim,), False)
    return modules


def gguf_name(name: str) -> str:
    """Hugging Face name -> GGUF name: ``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    if name in _GLOBAL_GGUF:
        return _GLOBAL_GGUF[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_MODULE_GGUF[module]}.{kind}"


def rotated_heads(name: str, config: ModelConfig) -> int | None:
    """Number of heads of a q or k projection (weight or bias), None for any other tensor."""
    if ".self_attn.q_proj." in name:
        return config.num_heads
    if ".self_attn.k_proj." in name:
        return config.num_kv_heads
    return None
