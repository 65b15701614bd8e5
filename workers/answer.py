"""Answer: one text of a job while it is made, token by token. A job with n texts has n of them.

Owned by the delivery thread; the stepping thread sees only the sequence. Knows no store.
"""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from engine.grammar import Constraint, Grammars
from engine.plan import Completion, TokenOutput
from engine.sequence import FinishReason, Sequence
from engine.stop_strings import StopMatcher
from engine.tokenizer import Detokenizer
from queueing.job import Choice
from queueing.token_stream import Piece

# JSON has no infinity: what is next to impossible is told as this, as OpenAI does.
_LEAST_LOGPROB = -9999.0


@dataclass(slots=True, eq=False)
class Answer:
    """One text. `num_output_tokens` counts the end token too; `finish_reason` is None before it."""

    index: int
    sequence: Sequence
    detokenizer: Detokenizer
    stops: StopMatcher
    grammars: Grammars
    constraint: Constraint | None
    finish_reason: FinishReason | None = None
    num_tokens: int = 0
    num_output_tokens: int = 0
    num_cached: int = 0
    _text: list[str] = field(default_factory=list)
    _num_chars: int = 0
    _num_fed_chars: int = 0
    _is_cut: bool = False
    _notes: list["_Note"] = field(default_factory=list)
    _fresh: list[str] = field(default_factory=list)
    _num_told_chars: int = 0
    _num_told_notes: int = 0

    def take(self, token: TokenOutput) -> bool:
        """Add one token to the text; True when a stop string ended it."""
        self.num_tokens += 1
        if token.logprobs is not None:
            self._notes.append(_Note(self._num_fed_chars, self._told(token)))
        text = self.detokenizer.feed(token.token_id)
        self._num_fed_chars += len(text)
        return self._add(text)

    def end(self, completion: Completion) -> None:
        """Make the text whole: its sequence has ended."""
        self.num_cached = completion.num_cached_tokens
        self.num_output_tokens = completion.num_output_tokens
        if not self._add(self.detokenizer.flush()):
            self._append(self.stops.flush())
            self.finish_reason = completion.finish_reason

    def is_true_to_schema(self) -> bool:
        """Tell whether a text that ended by itself keeps to the schema that was asked for."""
        if self.constraint is None or self.finish_reason is not FinishReason.STOP:
            return True
        return self.constraint.is_matched()

    def choice(self) -> Choice:
        """Return the text as a result carries it."""
        assert self.finish_reason is not None, "the text is not whole"
        logprobs = None
        if self.sequence.sampling.num_logprobs is not None:
            # A stop string takes the tokens with it that it was made of.
            kept = [note for note in self._notes if not self._is_cut or self._is_certain(note)]
            logprobs = {"content": [note.told for note in kept], "refusal": None}
        return Choice(self.index, "".join(self._text), self.finish_reason.value, logprobs)

    def untold(self) -> Piece | None:
        """Return what came since it was last told; None when there is none."""
        if not self._fresh:
            return None
        notes = [note for note in self._notes[self._num_told_notes :] if self._is_certain(note)]
        told = tuple(note.told for note in notes)
        text = "".join(self._fresh)
        return Piece(self.index, self._num_told_chars, text, self._num_told_notes, told)

    def note_told(self, piece: Piece) -> None:
        """Note that a piece was told; nothing may have come since it was made."""
        self._fresh.clear()
        self._num_told_chars += len(piece.text)
        self._num_told_notes += len(piece.logprobs)

    def _add(self, text: str) -> bool:
        match = self.stops.feed(text)
        self._append(match.text)
        if match.is_stopped:
            self._is_cut = True
            self.finish_reason = FinishReason.STOP
            self.num_output_tokens = self.num_tokens
        return match.is_stopped

    def _append(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._fresh.append(text)
            self._num_chars += len(text)

    def _is_certain(self, note: "_Note") -> bool:
        return note.offset < self._num_chars

    def _told(self, token: TokenOutput) -> dict[str, Any]:  # OpenAI's shape
        logprobs = token.logprobs
        assert logprobs is not None, "nothing was asked for"
        top = [self._entry(token_id, logprob) for token_id, logprob in logprobs.top]
        return {**self._entry(token.token_id, logprobs.logprob), "top_logprobs": top}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        spelled = self.grammars.bytes_of(token_id)
        return {
            "token": spelled.decode(errors="replace"),
            "logprob": max(logprob, _LEAST_LOGPROB) if isfinite(logprob) else _LEAST_LOGPROB,
            "bytes": list(spelled),
        }


@dataclass(frozen=True, slots=True)
class _Note:
    """The log probabilities of one token, and how much text came before it."""

    offset: int
    told: dict[str, Any]
