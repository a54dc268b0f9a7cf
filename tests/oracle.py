"""The dense oracle: a model recomputed from nothing but its weights, without cache, pages, batches or fused weights.

Written apart from the engine's own layers on purpose: where both agree, neither got it wrong alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from compute_loop.models.config import ModelConfig, load_model_config
from compute_loop.models.files import locate_model
from compute_loop.models.weights import load_weights


@dataclass(frozen=True, slots=True, eq=False)
class DenseOracle:
    """Weights under their Hugging Face names, computed in their own number format."""

    config: ModelConfig
    weights: dict[str, torch.Tensor]

    @classmethod
    def load(cls, model: str, dtype: torch.dtype = torch.float32) -> DenseOracle:
        """The oracle of a model directory, a GGUF file or the default model."""
        files = locate_model(model)
        config = load_model_config(files)
        return cls(config, load_weights(files, config, dtype, progress=False))

    @torch.inference_mode()
    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Logits behind every token: ``[len(token_ids), vocab_size]``."""
        config, weights = self.config, self.weights
        x = weights["model.embed_tokens.weight"][torch.tensor(token_ids, dtype=torch.long)]
        for layer in range(config.num_layers):
            names = f"model.layers.{layer}."
            x = x + self._attention(names + "self_attn.", self._norm(x, names + "input_layernorm.weight"))
            x = x + self._mlp(names + "mlp.", self._norm(x, names + "post_attention_layernorm.weight"))
        head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
        return self._norm(x, "model.norm.weight") @ weights[head].T

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """`count` most likely tokens behind `prompt`, each computed from scratch."""
        token_ids = list(prompt)
        for _ in range(count):
            token_ids.append(int(self.logits(token_ids)[-1].argmax()))
        return token_ids[len(prompt) :]

    def is_greedy(self, prompt: Sequence[int], output: Sequence[int]) -> bool:
        """Whether `output` equals ``greedy(prompt, len(output))``, in one pass over all of it.

        By induction: if each token is the most likely one behind all before it, so is the whole.
        """
        logits = self.logits([*prompt, *output[:-1]])
        return bool(logits[len(prompt) - 1 :].argmax(-1).tolist() == list(output))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        exact = x.double()
        exact = exact / torch.sqrt((exact * exact).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return exact.to(x.dtype) * self.weights[name]

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias

    def _mlp(self, names: str, x: torch.Tensor) -> torch.Tensor:
        gate = self._linear(x, names + "gate_proj")
        return self._linear(
            gate * torch.sigmoid(gate) * self._linear(x, names + "up_proj"), names + "down_proj"
        )

    def _attention(self, names: str, x: torch.Tensor) -> torch.Tensor:
        config, length = self.config, len(x)
        q = self._heads(names, "q", x, config.num_heads)
        k = self._heads(names, "k", x, config.num_kv_heads)
        v = self._linear(x, names + "v_proj").view(length, config.num_kv_heads, config.head_dim)
        group = config.num_heads // config.num_kv_heads
        distance = torch.arange(length)[:, None] - torch.arange(length)
        visible = distance >= 0
        if config.sliding_window is not None:
            visible &= distance < config.sliding_window
        outputs = []
        for head in range(config.num_heads):
            scores = q[:, head] @ k[:, head // group].T / math.sqrt(config.head_dim)
            outputs.append(scores.where(visible, -math.inf).softmax(-1) @ v[:, head // group])
        return self._linear(torch.cat(outputs, dim=1), names + "o_proj")

    def _heads(self, names: str, side: str, x: torch.Tensor, count: int) -> torch.Tensor:
        heads = self._linear(x, f"{names}{side}_proj").view(len(x), count, self.config.head_dim)
        if self.config.qk_norm:
            heads = self._norm(heads, f"{names}{side}_norm.weight")
        angles = torch.outer(torch.arange(len(x), dtype=torch.float64), rotary_frequencies(self.config))
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        half = self.config.head_dim // 2
        pairs = torch.complex(heads[..., :half].double(), heads[..., half:].double()) * turn
        return torch.cat((pairs.real, pairs.imag), dim=-1).to(x.dtype)


def rotary_frequencies(config: ModelConfig) -> torch.Tensor:
    """Radians per position of each pair of a head, float64."""
    pairs = torch.arange(config.head_dim // 2, dtype=torch.float64)
    plain = config.rope_theta ** (-2 * pairs / config.head_dim)
    scaled = [_SCALED[config.rope_scaling.kind](config, pair, float(f)) for pair, f in enumerate(plain)]
    return torch.tensor(scaled, dtype=torch.float64)


def _llama3(config: ModelConfig, pair: int, frequency: float) -> float:
    scaling = config.rope_scaling
    wavelength = 2 * math.pi / frequency
    if wavelength < scaling.original_max_position_embeddings / scaling.high_freq_factor:
        return frequency
    if wavelength > scaling.original_max_position_embeddings / scaling.low_freq_factor:
        return frequency / scaling.factor
    smooth = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


_SCALED: dict[str, Callable[[ModelConfig, int, float], float]] = {
    "none": lambda config, pair, frequency: frequency,
    "linear": lambda config, pair, frequency: frequency / config.rope_scaling.factor,
    "llama3": _llama3,
    "factors": lambda config, pair, frequency: frequency / config.rope_scaling.factors[pair],
}
