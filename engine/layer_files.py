"""LayerFiles: one layer's tensors, as they lie in files under the names of their parts.

Owns reading a layer fused, as it is computed, and writing it back in parts, as files have it.
"""

import torch

from engine.layer_tensors import LayerTensors, RoundedLayer
from engine.model import stored_linear
from engine.model.config import ModelConfig
from engine.model.stored_linear import Part, StoredLinear
from engine.model.weights import EditedWeights, take_fused
from engine.quantised import SCALES_SUFFIX, SUFFIXES


class LayerFiles:
    """One layer of a model whose weights are being edited."""

    def __init__(self, weights: EditedWeights, config: ModelConfig, index: int) -> None:
        self._weights = weights
        self._config = config
        self._index = index
        self._parts = stored_linear.parts_of(config, index)

    def read(self) -> LayerTensors:
        """Read all that may be changed."""
        norms, qkv = self._config.norms, self._parts[Part.QKV]
        return LayerTensors(
            linears={
                part: take_fused(self._weights, stored, "weight", torch.float32, stored.num_in)
                for part, stored in self._parts.items()
            },
            qkv_bias=(
                take_fused(self._weights, qkv, "bias", torch.float32) if qkv.has_bias else None
            ),
            norm_before_attention=self._read_norm(norms.before_attention),
            norm_before_feed_forward=self._read_norm(norms.before_feed_forward),
        )

    def write(self, layer: RoundedLayer) -> None:
        """Put back norms and bias, and rounded weights in the place of the others."""
        norms, tensors = self._config.norms, layer.tensors
        self._write_norm(norms.before_attention, tensors.norm_before_attention)
        self._write_norm(norms.before_feed_forward, tensors.norm_before_feed_forward)
        if tensors.qkv_bias is not None:
            self._write_parts(self._parts[Part.QKV], "bias", tensors.qkv_bias)
        for part, weight in layer.weights.items():
            stored = self._parts[part]
            self._write_parts(stored, SUFFIXES[weight.scheme], weight.values)
            self._write_parts(stored, SCALES_SUFFIX, weight.scales)
            for name in stored.names:
                self._weights.remove(f"{name}.weight")

    def _write_parts(self, stored: StoredLinear, suffix: str, fused: torch.Tensor) -> None:
        for name, part in zip(stored.names, torch.split(fused, list(stored.num_outs)), strict=True):
            self._weights.replace(f"{name}.{suffix}", part)

    def _read_norm(self, name: str | None) -> torch.Tensor | None:
        if name is None:
            return None
        shape = (self._config.hidden_size,)
        stored = self._weights.take(self._norm_name(name), shape, torch.float32)
        return stored + self._config.norm_offset

    def _write_norm(self, name: str | None, norm: torch.Tensor | None) -> None:
        if name is not None and norm is not None:
            self._weights.replace(self._norm_name(name), norm - self._config.norm_offset)

    def _norm_name(self, name: str) -> str:
        return f"model.layers.{self._index}.{name}.weight"
