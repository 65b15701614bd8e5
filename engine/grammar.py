"""Grammars: JSON schemas become masks over a model's tokens.

Owns llguidance, which does the work, and the bounds that keep a hostile schema from holding up a
step. What a schema's compiler does not do exactly is refused, never approximated. Must not import
torch: the API checks schemas with this file where no engine is installed.
"""

from collections import OrderedDict
from functools import cached_property
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine.errors import GrammarError
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # only its stub has it

# JSON as models mostly write it; left free, a model may add blanks for ever.
_OPTIONS: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,
    "lenient": False,
}
# What is longer takes too long to compile.
_MAX_SCHEMA_CHARS = 65_536
# Work for one mask: what exceeds it ends the job. Measured: 60 ms at worst, 0.05 ms as a rule.
_STEP_FUEL = 20_000
_MAX_LEXER_STATES = 50_000
_MAX_KEPT = 64
# Some patterns exceed the bound only after their first quote.
_NUM_TRIED_TOKENS = 3


class Constraint:
    """Which tokens may come next in one answer. One thread at a time."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._num_taken = 0

    def allowed_after(self, answer_ids: list[int]) -> bytes:
        """Return a bit for each token, the lowest first: 1 where the token may follow the answer.

        The answer is what was asked about before and perhaps more. Nothing is allowed once the
        answer is no beginning of a match, or too much work.
        """
        new_ids = answer_ids[self._num_taken :]
        self._num_taken = len(answer_ids)
        self._matcher.consume_tokens(new_ids)
        return self._matcher.compute_bitmask()

    def is_matched(self) -> bool:
        """Tell whether what came so far is a whole match."""
        return not self._matcher.is_error() and self._matcher.is_accepting()


class Grammars:
    """Makes constraints for one model, whose tokens it knows as bytes. Thread-safe.

    Compiled schemas are kept, the newest _MAX_KEPT of them: the lines of a batch mostly share one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._source = tokenizer
        self._lock = Lock()
        self._kept: OrderedDict[bytes, LLMatcher] = OrderedDict()

    @property
    def num_kept(self) -> int:
        """Count the compiled schemas."""
        return len(self._kept)

    def check(self, schema: str) -> None:
        """Raise GrammarError for a schema that can't be kept to."""
        self._matcher(schema)

    def constraint(self, schema: str) -> Constraint:
        """Return what keeps one answer to a schema; raises GrammarError."""
        return Constraint(self._matcher(schema))

    def bytes_of(self, token_id: int) -> bytes:
        """Return what a token spells, which may be a part of a character."""
        if token_id >= self._tokenizer.vocab_size:
            return b""
        return self._tokenizer.decode_bytes([token_id])

    def _matcher(self, schema: str) -> LLMatcher:
        """Return a matcher of one's own that has seen nothing yet."""
        digest = sha256(schema.encode()).digest()
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
                return self._kept[digest].deep_copy()
        matcher = self._compiled(schema)
        _try_out(matcher.deep_copy())
        with self._lock:
            self._kept[digest] = matcher
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            return matcher.deep_copy()

    def _compiled(self, schema: str) -> LLMatcher:
        if len(schema) > _MAX_SCHEMA_CHARS:
            raise GrammarError(f"it is longer than {_MAX_SCHEMA_CHARS} characters")
        if not self._source.eos_token_ids:
            raise GrammarError("the model has no token to end an answer with")
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)
        except ValueError as error:
            raise GrammarError("it is not an object") from error
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_limits())
        if matcher.is_error():
            # The first line says what is wrong; what follows quotes the schema.
            raise GrammarError(matcher.get_error().partition("\n")[0][:200])
        return matcher

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """The vocabulary as llguidance needs it, which takes a moment to make."""
        ends = sorted(self._source.eos_token_ids)
        return LLTokenizer(
            self._source.definition, eos_token=ends or None, slices=LLTokenizer.json_slices()
        )


def _try_out(matcher: LLMatcher) -> None:
    """Raise GrammarError when the first tokens of an answer are too much work, or none may come."""
    for _ in range(_NUM_TRIED_TOKENS):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error() or mask == 0:
            raise GrammarError("it is too complex")
        first_allowed = (mask & -mask).bit_length() - 1
        matcher.consume_token(first_allowed)
        if matcher.is_stopped():
            return


def _limits() -> LLParserLimits:
    return LLParserLimits(
        step_lexer_fuel=_STEP_FUEL, max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False
    )
