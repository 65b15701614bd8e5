"""What the engine refuses, as types.

    EngineError
    ├── SequenceRefusedError (ValueError)   raised by Engine.add; nothing was changed
    │   ├── EmptyPromptError
    │   ├── TokenIdError
    │   ├── ContextLimitError
    │   ├── CacheLimitError
    │   ├── SamplingError
    │   ├── GrammarError
    │   └── DuplicateSequenceError
    ├── KernelsMissingError                 raised while loading
    ├── DeviceMemoryError                   inside a step: tried again in smaller chunks
    ├── RiseTargetError                     raised while quantising
    └── ModelFolderError (ValueError)       raised while loading
        ├── UnsupportedModelError
        ├── WeightsError
        ├── ChatTemplateError
        └── MemoryBudgetError

This file must not import anything of ours: the tokenizer, used where torch is not installed, raises
from it too.
"""


class EngineError(Exception):
    """Anything the engine refuses on purpose; every other exception is a fault of ours."""


class SequenceRefusedError(EngineError, ValueError):
    """The sequence can never be run as it stands; the engine's state is unchanged."""


class EmptyPromptError(SequenceRefusedError):
    """A prompt without tokens has no last token to continue from."""

    def __init__(self) -> None:
        super().__init__("the prompt has no tokens")


class TokenIdError(SequenceRefusedError):
    """A prompt token lies outside the vocabulary."""

    def __init__(self, index: int, token_id: int, vocab_size: int) -> None:
        super().__init__(f"token {token_id} at index {index} is outside 0..{vocab_size - 1}")
        self.index = index


class ContextLimitError(SequenceRefusedError):
    """Prompt and asked-for tokens together exceed the context."""

    def __init__(self, num_prompt_tokens: int, max_tokens: int, max_context: int) -> None:
        super().__init__(
            f"{num_prompt_tokens} prompt tokens and max_tokens {max_tokens} exceed the context of"
            f" {max_context} tokens"
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.max_context = max_context


class CacheLimitError(SequenceRefusedError):
    """The sequence would not fit into the KV cache even if it were alone."""

    def __init__(self, num_tokens: int, num_slots: int) -> None:
        super().__init__(f"{num_tokens} tokens exceed the KV cache of {num_slots} tokens")
        self.num_tokens = num_tokens
        self.num_slots = num_slots


class SamplingError(SequenceRefusedError):
    """A sampling parameter lies outside its range."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name} is {value!r}; allowed: {allowed}")
        self.name = name


class GrammarError(SequenceRefusedError):
    """The answer can't be held to this schema."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the schema can't be kept to: {reason}")


class DuplicateSequenceError(SequenceRefusedError):
    """A sequence with this id is still in the engine."""

    def __init__(self, sequence_id: str) -> None:
        super().__init__(f"sequence {sequence_id!r} is already in the engine")


class DeviceMemoryError(EngineError):
    """The device had no memory for a step; raised by a runner before any sequence has moved."""


class RiseTargetError(EngineError):
    """A rise of perplexity so small was asked for that int4 would be int8 throughout."""

    def __init__(self) -> None:
        super().__init__("so small a rise leaves no layer in 4 bits: take int8, or allow more")


class KernelsMissingError(EngineError):
    """Kernels were asked for that can't run: not built, not installed, or for another device."""

    def __init__(self, kernels: str, device: str) -> None:
        super().__init__(
            f"no {kernels} kernels for this {device}: native ones are for a CPU, compiled by "
            "`python -m engine.build`, Triton's for a GPU, with a C compiler and Python's headers"
        )


class ModelFolderError(EngineError, ValueError):
    """A model folder cannot be served as it stands."""


class UnsupportedModelError(ModelFolderError):
    """The configuration asks for something the decoder does not do; `feature` names it."""

    def __init__(self, feature: str) -> None:
        super().__init__(f"unsupported model: {feature}")
        self.feature = feature


class WeightsError(ModelFolderError):
    """The weight files do not hold what the configuration promises."""


class ChatTemplateError(ModelFolderError):
    """The chat template is missing, broken, or refused the messages."""


class MemoryBudgetError(ModelFolderError):
    """The model and the smallest useful cache exceed the memory budget."""

    def __init__(self, needed_bytes: int, budget_bytes: int) -> None:
        super().__init__(f"needs {needed_bytes} bytes, the budget is {budget_bytes} bytes")
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
