"""RunningJob: a claimed job that generates, through tokenizer, engine and back to text.

Made by the consuming thread, then owned by the delivery thread alone; the stepping thread sees only
its sequences and its deadline. Must not know Redis or Celery.
"""

import time
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from hashlib import blake2b

from engine.errors import ChatTemplateError, GrammarError, SamplingError
from engine.grammar import Grammars
from engine.plan import Completion, TokenOutput
from engine.sequence import SamplingParams, Sequence
from engine.stop_strings import StopMatcher
from engine.tokenizer import Tokenizer
from queueing.errors import FailureCode, RequestError
from queueing.job import Claim, JobResult, JobState, Usage
from queueing.token_stream import Piece
from queueing.wire import GenerateRequest, decode_request
from workers.answer import Answer
from workers.engine_job import StageClock, deadline_of, index_of, rank_of, sequence_id


@dataclass(slots=True, eq=False)
class RunningJob:
    """One generating job in the engine; an EngineJob."""

    claim: Claim
    request: GenerateRequest
    answers: tuple[Answer, ...]
    deadline: float | None
    clock: StageClock

    @property
    def tag(self) -> str:
        """The lease's tag, which is also the first sequence's id."""
        return self.claim.lease.tag

    @property
    def sequences(self) -> Many[Sequence]:
        """All of its sequences, one for each text."""
        return [answer.sequence for answer in self.answers]

    @property
    def has_ended(self) -> bool:
        """True once every text is whole."""
        return all(answer.finish_reason is not None for answer in self.answers)

    @property
    def num_steps(self) -> int:
        """Count the tokens of its longest text."""
        return max(answer.num_tokens for answer in self.answers)

    def end_after(self, max_tokens: int | None) -> None:
        """End with fewer tokens than were asked for; None leaves them be."""
        for answer in self.answers:
            sampling = answer.sequence.sampling
            if max_tokens is not None and max_tokens < sampling.max_tokens:
                answer.sequence.sampling = replace(sampling, max_tokens=max_tokens)

    def take(self, token: TokenOutput) -> bool:
        """Add one token to its text; True when a stop string ended that."""
        started = time.monotonic()
        if self.clock.first_token is None:
            self.clock.first_token = started
        is_stopped = self.answer_of(token.sequence_id).take(token)
        self.clock.last_token = time.monotonic()
        self.clock.detokenise_s += self.clock.last_token - started
        return is_stopped

    def is_whole(self, sequence_id: str) -> bool:
        """Tell whether the text that a sequence makes is whole."""
        return self.answer_of(sequence_id).finish_reason is not None

    def end(self, completion: Completion) -> None:
        """Make one text whole: its sequence has ended."""
        self.answer_of(completion.sequence_id).end(completion)

    def answer_of(self, sequence_id: str) -> Answer:
        """Return the answer that a sequence makes."""
        return self.answers[index_of(sequence_id)]

    def untold(self) -> list[Piece]:
        """Return what came since it was last told."""
        pieces = [answer.untold() for answer in self.answers]
        return [piece for piece in pieces if piece is not None]

    def note_told(self, piece: Piece) -> None:
        """Note that a piece was told; nothing may have come since it was made."""
        self.answers[piece.index].note_told(piece)

    def result(self) -> JobResult:
        """Make the result of a job whose texts are whole."""
        if not all(answer.is_true_to_schema() for answer in self.answers):
            message = "the schema became too complex while the answer was made"
            return self.failed(JobState.FAILED, FailureCode.ENGINE_ERROR, message)
        return JobResult(
            state=JobState.COMPLETED,
            choices=tuple(answer.choice() for answer in self.answers),
            usage=self._usage(sum(answer.num_output_tokens for answer in self.answers)),
            model=self.request.model,
            stages=self.clock.durations_ms(),
        )

    def failed(self, state: JobState, code: FailureCode, message: str) -> JobResult:
        """Make the result of a job that ended otherwise."""
        failure = JobResult.failure(state, code, message)
        return JobResult(
            state=state,
            error=failure.error,
            model=self.request.model,
            usage=self._usage(sum(answer.num_tokens for answer in self.answers)),
            stages=self.clock.durations_ms(),
        )

    def _usage(self, num_output_tokens: int) -> Usage:
        first = self.answers[0]
        return Usage(len(first.sequence.prompt_ids), num_output_tokens, first.num_cached)


def prepare(claim: Claim, tokenizer: Tokenizer, grammars: Grammars) -> RunningJob:
    """Read a claim's request and tokenise its prompt; raise RequestError if it can't be run."""
    clock = StageClock()
    request = decode_request(claim.request)
    try:
        prompt_ids = _prompt_ids(request, tokenizer)
        answers = tuple(
            _answer(claim, request, index, prompt_ids, tokenizer, grammars)
            for index in range(request.n)
        )
    except (SamplingError, GrammarError) as error:
        raise RequestError(FailureCode.INVALID_REQUEST, str(error)) from error
    except ChatTemplateError as error:
        raise RequestError(FailureCode.INVALID_REQUEST, str(error), "messages") from error
    clock.tokenised = time.monotonic()
    return RunningJob(claim, request, answers, deadline_of(claim, clock), clock)


def _prompt_ids(request: GenerateRequest, tokenizer: Tokenizer) -> list[int]:
    if request.messages is not None:
        return tokenizer.encode_chat(list(request.messages))
    if request.prompt_ids is not None:
        return list(request.prompt_ids)
    return tokenizer.encode(request.prompt or "")


def _answer(
    claim: Claim,
    request: GenerateRequest,
    index: int,
    prompt_ids: list[int],
    tokenizer: Tokenizer,
    grammars: Grammars,
) -> Answer:
    constraint = None if request.schema is None else grammars.constraint(request.schema)
    sequence = Sequence(
        sequence_id(claim.lease.tag, index),
        prompt_ids,
        _sampling(request, index, claim.lease.job_id),
        rank_of(claim),
        constraint,
    )
    stops = StopMatcher(request.stop)
    return Answer(index, sequence, tokenizer.detokenizer(), stops, grammars, constraint)


def _sampling(request: GenerateRequest, index: int, job_id: str) -> SamplingParams:
    """Read how to sample the text of this index.

    A streamed job without a seed gets one from its id: after a crash the next run says the same.
    """
    seed = request.seed
    if seed is None and request.stream and request.temperature > 0:
        seed = int.from_bytes(blake2b(job_id.encode(), digest_size=7).digest())
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias={int(token_id): bias for token_id, bias in request.logit_bias.items()},
        num_logprobs=request.num_logprobs,
        seed=None if seed is None else seed + index,
        stop_token_ids=frozenset(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
    )
