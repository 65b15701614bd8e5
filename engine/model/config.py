"""ModelConfig: one description of a decoder, whatever its family calls things.

Owns what may differ between the decoders that can be run; engine/model/families.py translates every
supported family into it, so that no other file asks which family it runs. Must not import torch.
"""

from dataclasses import dataclass
from enum import StrEnum

from engine.model.experts_config import ExpertsConfig
from engine.model.rope_config import RopeConfig


class Activation(StrEnum):
    """The function a gate goes through."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class QueryKeyNorm(StrEnum):
    """What is normalised of queries and keys: each head, or all of a row's heads as one."""

    EACH_HEAD = "each_head"
    WHOLE_ROW = "whole_row"


class Scheme(StrEnum):
    """How weights are rounded; engine/quantised.py says how each lies in files."""

    INT8 = "int8"
    INT4 = "int4"


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What was done to a model's linear layers; groups are of inputs, None means all of them.

    Those that an int4 model keeps in int8 are named as their weights are.
    """

    scheme: Scheme
    group_size: int | None
    kept_in_int8: tuple[str, ...] = ()

    def scheme_of(self, name: str) -> Scheme:
        """Return how one linear layer is rounded."""
        return Scheme.INT8 if name in self.kept_in_int8 else self.scheme

    @property
    def summary(self) -> str:
        """Say in a line how weights are rounded, for manifests, logs and metrics."""
        groups = "" if self.group_size is None else f" in groups of {self.group_size}"
        kept = f", linear layers in int8: {len(self.kept_in_int8)}" if self.kept_in_int8 else ""
        return f"{self.scheme}{groups}{kept}"


@dataclass(frozen=True, slots=True)
class NormNames:
    """The norms of a layer as its weights are named; None where the family has none.

    A norm before a part normalises what goes into it; a norm after it, what is added to the
    residual.
    """

    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    before_feed_forward: str | None = "post_attention_layernorm"
    after_feed_forward: str | None = None


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ between the layers of one model.

    With a window, a token sees that many tokens, the last of which is itself. Without experts, the
    feed-forward part is one for all tokens.
    """

    window: int | None
    rope: RopeConfig
    experts: ExpertsConfig | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder. The defaults are Llama's."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    max_context: int
    attention_scale: float
    layers: tuple[LayerConfig, ...]
    ties_embeddings: bool
    eos_token_ids: frozenset[int]
    activation: Activation = Activation.SILU
    norms: NormNames = NormNames()
    norm_offset: float = 0.0  # added to the stored weights of every norm
    query_key_norm: QueryKeyNorm | None = None
    has_qkv_bias: bool = False
    is_stored_fused: bool = False  # qkv_proj and gate_up_proj, instead of their parts
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    score_softcap: float | None = None
    quantisation: Quantisation | None = None

    @property
    def num_layers(self) -> int:
        """Count the layers."""
        return len(self.layers)

    @property
    def has_experts(self) -> bool:
        """Tell whether what a row goes through depends on the row, in any layer."""
        return any(layer.experts for layer in self.layers)

    @property
    def window(self) -> int | None:
        """Return how many tokens the layer that sees furthest sees; None when one sees all."""
        windows = [layer.window for layer in self.layers if layer.window is not None]
        return max(windows) if len(windows) == self.num_layers else None
