"""EngineConfig: the choices an operator can make about one engine.

Must not know the model (engine/model/config.py reads that) nor where the values come from.
"""

from dataclasses import dataclass
from enum import StrEnum


class ComputeType(StrEnum):
    """The type of weights and activations. AUTO takes what the weight files hold."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class CacheType(StrEnum):
    """The type of keys and values in the cache. AUTO takes that of the activations."""

    AUTO = "auto"
    INT8 = "int8"


class KernelChoice(StrEnum):
    """Which kernels run.

    AUTO takes those of the device where there are some, else plain PyTorch: NATIVE ones, compiled
    at installation, on a CPU, and TRITON's on a GPU.
    """

    AUTO = "auto"
    NATIVE = "native"
    TRITON = "triton"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How large and how fast.

    num_blocks None: as many as memory_budget_bytes leaves beside weights and activations.
    expected_output_share: the part of max_tokens that admission counts on; None measures it,
    starting from the worst case 1.0. Below the truth, running sequences may have to be preempted;
    none ever fails for it.
    graphs: on a GPU, record steps of single tokens when loading and replay them.
    """

    block_size: int = 16
    num_blocks: int | None = None
    memory_budget_bytes: int = 2 << 30
    max_sequences: int = 32
    max_step_tokens: int = 512
    max_context: int | None = None
    expected_output_share: float | None = None
    prefix_caching: bool = True
    dtype: ComputeType = ComputeType.AUTO
    kv_dtype: CacheType = CacheType.AUTO
    device: str = "cpu"
    kernels: KernelChoice = KernelChoice.AUTO
    graphs: bool = True
    num_threads: int | None = None

    def __post_init__(self) -> None:
        assert self.block_size >= 2, "a block holds whole pairs of tokens"
        assert self.block_size % 2 == 0, "a block holds whole pairs of tokens"
        holds_bytes = self.kv_dtype is CacheType.INT8
        assert not holds_bytes or self.block_size % 16 == 0, "16 tokens' bytes are read at once"
        assert self.max_step_tokens >= self.max_sequences, "a step gives each sequence a token"
