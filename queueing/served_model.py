"""ServedModel: what is known of a model to say yes or no to a prompt; SizedRequest is the yes.

Owns the rule of the context: prompt and generated tokens together fit, or the caller is told both
numbers. Loads nothing: whoever composes a process hands in the tokenizers of its model folders.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from queueing.errors import FailureCode, RequestError
from queueing.wire import EmbedRequest, GenerateRequest


class TextEncoder(Protocol):
    """Turns text into token ids; ValueError when a model's template refuses the messages."""

    @property
    def vocab_size(self) -> int:
        """Count the token ids there are."""
        ...

    def encode(self, text: str) -> list[int]:
        """Encode a plain prompt."""
        ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Encode messages by the model's chat template."""
        ...


class SchemaChecker(Protocol):
    """Knows which JSON schemas a model's answers can be held to."""

    def check(self, schema: str) -> None:
        """Raise ValueError for one that can't be kept to."""
        ...


@dataclass(frozen=True, slots=True)
class SizedRequest:
    """A request that is known to fit its model."""

    request: GenerateRequest
    num_prompt_tokens: int

    @property
    def cost(self) -> int:
        """Tokens that serving it takes at most; what a Job's cost is."""
        return self.num_prompt_tokens + self.request.max_output_tokens


@dataclass(frozen=True, slots=True)
class SizedEmbedding:
    """An input that is known to fit the model that makes a vector of it."""

    request: EmbedRequest
    num_prompt_tokens: int

    @property
    def cost(self) -> int:
        """Tokens that serving it takes; what a Job's cost is."""
        return self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model; `context_length` counts prompt and generated tokens together."""

    name: str
    context_length: int
    default_max_tokens: int
    encoder: TextEncoder
    schemas: SchemaChecker | None = None

    def check_schema(self, schema: str | None, param: str) -> None:
        """Refuse a schema that answers can't be held to; raises RequestError."""
        if schema is None:
            return
        if self.schemas is None:
            message = f"{param} is not supported here"
            raise RequestError(FailureCode.UNSUPPORTED_PARAMETER, message, param)
        try:
            self.schemas.check(schema)
        except ValueError as error:
            raise RequestError(FailureCode.INVALID_REQUEST, str(error), param) from error

    def count_prompt(self, prompt: str, param: str = "prompt") -> int:
        """Count the tokens of a plain prompt; raises RequestError when there are none."""
        num_tokens = len(self.encoder.encode(prompt))
        if num_tokens == 0:
            raise RequestError(FailureCode.INVALID_REQUEST, f"the {param} has no tokens", param)
        return num_tokens

    def count_ids(self, token_ids: Sequence[int], param: str) -> int:
        """Count token ids; raises RequestError for one that the model does not have."""
        vocab_size = self.encoder.vocab_size
        for index, token_id in enumerate(token_ids):
            if token_id >= vocab_size:
                name = f"{param}[{index}]"
                message = f"{name}: the model's vocabulary has {vocab_size} tokens"
                raise RequestError(FailureCode.INVALID_REQUEST, message, name)
        return len(token_ids)

    def count_chat(self, messages: tuple[dict[str, str], ...], param: str = "messages") -> int:
        """Count a chat's tokens; raises RequestError when the model's template refuses it."""
        try:
            return len(self.encoder.encode_chat(list(messages)))
        except ValueError as error:
            reason = "the model's chat template does not take these messages"
            raise RequestError(FailureCode.INVALID_REQUEST, reason, param) from error

    def check_fits(self, num_tokens: int, param: str) -> None:
        """Raise RequestError, with both numbers, for an input that is longer than the context."""
        if num_tokens > self.context_length:
            message = (
                f"this model's context is {self.context_length} tokens; {param} has {num_tokens}"
            )
            raise RequestError(FailureCode.CONTEXT_LENGTH_EXCEEDED, message, param)

    def grant(self, num_prompt_tokens: int, asked_max_tokens: int | None) -> int:
        """Return a request's max_tokens: what was asked, or the default cut to what is left.

        Raises RequestError with both numbers when the prompt leaves too little of the context.
        """
        left = self.context_length - num_prompt_tokens
        wanted = 1 if asked_max_tokens is None else asked_max_tokens
        if wanted > left:
            raise RequestError(
                FailureCode.CONTEXT_LENGTH_EXCEEDED,
                f"this model's context is {self.context_length} tokens; the prompt has"
                f" {num_prompt_tokens} and max_tokens is {wanted},"
                f" together {num_prompt_tokens + wanted}",
                "max_tokens" if left > 0 else None,
            )
        return min(left, self.default_max_tokens) if asked_max_tokens is None else wanted


class ServedModels:
    """The models of this installation, by name; a name never becomes part of a path."""

    def __init__(
        self, models: Iterable[ServedModel], used_for: Callable[[str], str] = lambda name: name
    ) -> None:
        """Take which model is used for one that is asked for: by default, that one."""
        self._models = {model.name: model for model in models}
        self._used_for = used_for

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return sorted(self._models)

    def among(self, names: Collection[str] | None) -> "ServedModels":
        """Return those of these names; None is all of them."""
        if names is None:
            return self
        chosen = (model for model in self._models.values() if model.name in names)
        return ServedModels(chosen, self._used_for)

    def find(self, name: str | None) -> ServedModel:
        """Return the model to use for a name, without one for the only model.

        One that is not among these is not used for another. Raises RequestError for any other name.
        """
        model = self.find_itself(name)
        return self._models.get(self._used_for(model.name), model)

    def find_itself(self, name: str | None) -> ServedModel:
        """Return the model of this name and no other, whatever is used for it just now."""
        if name is None and len(self._models) == 1:
            return next(iter(self._models.values()))
        if name is None:
            raise RequestError(
                FailureCode.INVALID_REQUEST, "model is required: several are served", "model"
            )
        if name not in self._models:
            raise RequestError(FailureCode.MODEL_NOT_FOUND, "no such model is served", "model")
        return self._models[name]
