"""A model without tensors: text and vectors are pure functions of the prompt and a seed, so all can
be checked.

The engine around it is the real one: scheduler, blocks, preemption. Only what is computed is made
up, and how long a step takes. Words in a prompt make the step that computes it misbehave.
"""

import os
import signal
import time
from array import array
from hashlib import blake2b
from math import sqrt
from typing import NoReturn

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from engine.admission import AdmissionEstimate
from engine.blocks import BlockPool
from engine.engine import Engine, EngineLimits
from engine.errors import DeviceMemoryError
from engine.plan import Choice, StepPlan, TokenLogprobs
from engine.scheduler import Scheduler, StepLimits
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer
from ops.settings import Settings

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "assistant: "
)
KILLS, EXITS, HANGS = "#kills#", "#exits#", "#hangs#"
# The device has no memory for more than a few tokens of such a prompt in one step.
HUNGRY, MAX_HUNGRY_TOKENS = "#hungry#", 8

_VOCABULARY = 256
_LETTERS = "abcdefghijklmnopqrstuvwxyz     "
_BLOCK_SIZE = 16


def expected_text(prompt: str, max_tokens: int, seed: int | None = None) -> str:
    """Return what the model answers to a prompt of plain ASCII."""
    ids = list(prompt.encode())
    return "".join(_letter(ids, seed, index) for index in range(max_tokens))


def expected_vector(prompt_ids: list[int]) -> "array[float]":
    """Return what the model makes of a prompt's tokens: eight numbers of length one together."""
    digest = blake2b(bytes(prompt_ids), digest_size=8).digest()
    length = sqrt(sum((byte + 1) ** 2 for byte in digest))
    return array("f", [(byte + 1) / length for byte in digest])


def as_prompt(*messages: dict[str, str]) -> str:
    """Return the prompt that the model makes of a chat."""
    said = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    return f"{said}assistant: "


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    codes = {letter: index for index, letter in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=codes, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Tokenizer(tokenizer.to_str(), CHAT_TEMPLATE, {}, frozenset())


def fake_engine(settings: Settings, step_s: float) -> Engine[None]:
    """Make an engine whose every step takes `step_s` seconds."""
    num_blocks = settings.kv_blocks or 512
    tokenizer = byte_tokenizer()
    scheduler = Scheduler(
        BlockPool(num_blocks, _BLOCK_SIZE, cache_key=b"fake"),
        StepLimits(settings.slots, settings.step_tokens),
        AdmissionEstimate(),
        frozenset(),
    )
    limits = EngineLimits(_VOCABULARY, 4096, settings.slots, num_blocks, _BLOCK_SIZE)
    runner, sampler = FakeRunner(tokenizer, step_s), FakeSampler(tokenizer)
    return Engine(scheduler, runner, sampler, FakePooler(), limits)


class FakeRunner:
    """Takes the time of a step, and does what the words of a prompt ask for."""

    def __init__(self, tokenizer: Tokenizer, step_s: float) -> None:
        self._tokenizer = tokenizer
        self._step_s = step_s

    def run(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            if chunk.num_tokens > 1:
                self._misbehave(self._tokenizer.decode(chunk.sequence.prompt_ids), chunk.num_tokens)
        time.sleep(self._step_s)

    def _misbehave(self, prompt: str, num_tokens: int) -> None:
        if HUNGRY in prompt and num_tokens > MAX_HUNGRY_TOKENS:
            raise DeviceMemoryError
        if KILLS in prompt:
            os.kill(os.getpid(), signal.SIGSEGV)
        if EXITS in prompt:
            os._exit(1)
        if HANGS in prompt:
            _hang()


class FakeSampler:
    """Says the letters that expected_text foretells."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def sample(self, hidden: None, sequences: list[Sequence]) -> list[Choice]:
        del hidden
        return [self._choice(sequence) for sequence in sequences]

    def _choice(self, sequence: Sequence) -> Choice:
        token_id, num_logprobs = self._next(sequence), sequence.sampling.num_logprobs
        if num_logprobs is None:
            return Choice(token_id)
        others = tuple((other, -2.0 - other) for other in range(num_logprobs - 1))
        top = ((token_id, -0.5), *others) if num_logprobs else ()
        return Choice(token_id, TokenLogprobs(-0.5, top))

    def _next(self, sequence: Sequence) -> int:
        prompt = list(self._tokenizer.decode(sequence.prompt_ids).encode())
        letter = _letter(prompt, sequence.sampling.seed, sequence.num_output)
        return self._tokenizer.encode(letter)[0]


class FakePooler:
    """Gives the vectors that expected_vector foretells."""

    def pool(self, hidden: None, plan: StepPlan) -> "dict[str, array[float]]":
        del hidden
        return {
            chunk.sequence.id: expected_vector(chunk.sequence.prompt_ids)
            for chunk in plan.chunks
            if chunk.is_last and chunk.num_pooled
        }

    def forget(self, sequence_id: str) -> None:
        del sequence_id


def _letter(prompt_ids: list[int], seed: int | None, index: int) -> str:
    digest = blake2b(bytes(prompt_ids), digest_size=8, salt=(seed or 0).to_bytes(8, "big"))
    digest.update(index.to_bytes(4, "big"))
    return _LETTERS[int.from_bytes(digest.digest(), "big") % len(_LETTERS)]


def _hang() -> NoReturn:
    while True:
        time.sleep(60)
