"""StoredExperts: under which names a layer of experts lies in the weight files.

Owns the names of routers and experts, as engine/model/stored_linear.py does those of all other
layers. Must not import torch.
"""

from dataclasses import dataclass

from engine.model.experts_config import ExpertNames, ExpertsConfig
from engine.model.stored_linear import StoredLinear


@dataclass(frozen=True, slots=True)
class StoredExpert:
    """The two halves of one expert."""

    gate_up: StoredLinear
    down: StoredLinear


@dataclass(frozen=True, slots=True)
class StoredExperts:
    """What scores the experts, and these; a shared one comes last in both."""

    router: StoredLinear
    experts: tuple[StoredExpert, ...]


def stored_experts(config: ExpertsConfig, index: int, hidden_size: int) -> StoredExperts:
    """Return where the experts of one layer lie."""
    block = f"model.layers.{index}.{config.names.block}."
    names, num_outs = [block + "gate"], [config.num_experts]
    experts = [
        _expert(f"{block}experts.{number}.", config.names, hidden_size, config.width)
        for number in range(config.num_experts)
    ]
    if config.shared_width is not None:
        names.append(block + "shared_expert_gate")
        num_outs.append(1)
        shared = _expert(block + "shared_expert.", config.names, hidden_size, config.shared_width)
        experts.append(shared)
    return StoredExperts(StoredLinear(tuple(names), tuple(num_outs), hidden_size), tuple(experts))


def _expert(prefix: str, names: ExpertNames, hidden_size: int, width: int) -> StoredExpert:
    return StoredExpert(
        StoredLinear((prefix + names.gate, prefix + names.up), (width, width), hidden_size),
        StoredLinear((prefix + names.down,), (hidden_size,), width),
    )
