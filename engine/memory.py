"""MemoryPlan: what an engine will hold, computed before anything is loaded.

Owns the split of a budget into weights, activations of the largest step, a reserve, and what
remains for the KV cache. Must not allocate anything itself.
"""

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import MemoryBudgetError
from engine.kv_cache import block_bytes
from engine.model.config import LayerConfig, ModelConfig

# Held back for the interpreter, libraries and what neither plan nor budget knows of.
_RESERVED_SHARE = 0.15


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by purpose. reserved_bytes is not allocated."""

    weights_bytes: int
    activation_bytes: int
    reserved_bytes: int
    cache_bytes: int
    num_blocks: int


def plan_memory(
    model: ModelConfig,
    config: EngineConfig,
    weights_bytes: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> MemoryPlan:
    """Split the budget; raise MemoryBudgetError if not even one longest context fits.

    A number of blocks that is given takes what it takes.
    """
    activation_bytes = _activation_bytes(model, config, dtype)
    reserved_bytes = round(_RESERVED_SHARE * config.memory_budget_bytes)
    one_block = block_bytes(model, config.block_size, kv_dtype)
    taken_bytes = weights_bytes + activation_bytes + reserved_bytes
    num_blocks = config.num_blocks or (config.memory_budget_bytes - taken_bytes) // one_block
    longest = min(config.max_context or model.max_context, model.max_context)
    num_needed = -(-longest // config.block_size)
    if config.num_blocks is None and num_blocks < num_needed:
        needed_bytes = taken_bytes + num_needed * one_block
        raise MemoryBudgetError(needed_bytes, config.memory_budget_bytes)
    return MemoryPlan(
        weights_bytes=weights_bytes,
        activation_bytes=activation_bytes,
        reserved_bytes=reserved_bytes,
        cache_bytes=num_blocks * one_block,
        num_blocks=num_blocks,
    )


def _activation_bytes(model: ModelConfig, config: EngineConfig, dtype: torch.dtype) -> int:
    """Count what one step of the largest size holds at once; scores are float32."""
    heads_width = (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    row_values = 4 * model.hidden_size + heads_width
    row_bytes = row_values * dtype.itemsize + 4 * model.hidden_size
    row_bytes += max(_feed_forward_row_bytes(model, layer, dtype) for layer in model.layers)
    return config.max_step_tokens * row_bytes + 4 * config.max_sequences * model.vocab_size


def _feed_forward_row_bytes(model: ModelConfig, layer: LayerConfig, dtype: torch.dtype) -> int:
    """Count a row between the halves; on its way to experts it has a copy, and scores and shares.

    All rows may choose the same expert.
    """
    experts = layer.experts
    if experts is None:
        return 3 * model.intermediate_size * dtype.itemsize
    width = max(experts.width, experts.shared_width or 0)
    num_numbers = experts.num_experts + 4 * (experts.num_chosen + 1)
    return (model.hidden_size + 3 * width) * dtype.itemsize + 4 * num_numbers
