"""ExpertsConfig: what a layer of experts is made of, as the configuration states it.

Owns reading the names that families give the same numbers. Must not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What the weights of experts are called, and the part of a layer they are in."""

    block: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Feed-forward parts of which a router chooses a few for each token.

    A shared expert, where there is one, is no part of the choice: every token goes through it.
    """

    num_experts: int
    num_chosen: int
    width: int
    is_renormalised: bool  # the shares of the chosen ones add up to one
    shared_width: int | None = None
    names: ExpertNames = ExpertNames()


def read_experts(config: Mapping[str, Any], width: int) -> ExpertsConfig:
    """Read what all families of experts state; raise ValueError for an impossible choice."""
    num_experts = int(config.get("num_local_experts") or config["num_experts"])
    num_chosen = int(config["num_experts_per_tok"])
    if not 1 <= num_chosen <= num_experts:
        message = f"num_experts_per_tok is {num_chosen}, of {num_experts} experts"
        raise ValueError(message)
    is_renormalised = bool(config.get("norm_topk_prob", False))
    return ExpertsConfig(num_experts, num_chosen, width, is_renormalised)


def sparse_layers(config: Mapping[str, Any], num_layers: int) -> set[int]:
    """Return which layers have experts: all, or each n-th one, but for those that are named."""
    step = int(config.get("decoder_sparse_step") or 1)
    return set(range(step - 1, num_layers, step)) - set(config.get("mlp_only_layers") or ())
