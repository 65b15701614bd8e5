"""RunningJob: a claimed prompt job on its way through tokenizer, engine and back to text.

Made by the consuming thread, then owned by the delivery thread alone; the stepping thread sees only
its sequence and its deadline. Must not know Redis or Celery.
"""

import time
from dataclasses import dataclass, field
from hashlib import blake2b

from engine.errors import ChatTemplateError, GrammarError, SamplingError
from engine.grammar import Constraint, Grammars
from engine.sequence import FinishReason, SamplingParams, Sequence
from engine.stop_strings import StopMatcher
from engine.tokenizer import Detokenizer, Tokenizer
from queueing.errors import FailureCode, RequestError
from queueing.job import Choice, Claim, JobResult, JobState, Usage
from queueing.token_stream import Piece
from queueing.wire import GenerateRequest, decode_request


@dataclass(slots=True)
class StageClock:
    """When a job passed the points between its stages; monotonic seconds, None for not yet."""

    received: float = field(default_factory=time.monotonic)
    tokenised: float | None = None
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    detokenise_s: float = 0.0

    def durations_ms(self) -> dict[str, float]:
        """Return the length of each stage that was completed."""
        points = [
            ("tokenise_ms", self.received, self.tokenised),
            ("admit_ms", self.tokenised, self.admitted),
            ("prefill_ms", self.admitted, self.first_token),
            ("decode_ms", self.first_token, self.last_token),
        ]
        stages = {
            name: round((end - start) * 1000, 3)
            for name, start, end in points
            if start is not None and end is not None
        }
        return stages | {"detokenise_ms": round(self.detokenise_s * 1000, 3)}

    def stage(self) -> str:
        """Name the stage the job is in."""
        if self.first_token is not None:
            return "decode"
        return "prefill" if self.admitted is not None else "claimed"


@dataclass(slots=True, eq=False)
class RunningJob:
    """One job in the engine. `deadline` is a monotonic instant; None for none."""

    claim: Claim
    request: GenerateRequest
    sequence: Sequence
    deadline: float | None
    clock: StageClock
    detokenizer: Detokenizer
    stops: StopMatcher
    constraint: Constraint | None = None
    text: list[str] = field(default_factory=list)
    num_tokens: int = 0
    num_cached: int = 0
    fresh: list[str] = field(default_factory=list)
    num_told: int = 0

    @property
    def tag(self) -> str:
        """The lease's tag, which is also the sequence's id."""
        return self.sequence.id

    def take(self, token_id: int) -> bool:
        """Add one token to the text; True when a stop string is complete."""
        started = time.monotonic()
        if self.clock.first_token is None:
            self.clock.first_token = started
        self.num_tokens += 1
        match = self.stops.feed(self.detokenizer.feed(token_id))
        self.text.append(match.text)
        if self.request.stream and match.text:
            self.fresh.append(match.text)
        self.clock.last_token = time.monotonic()
        self.clock.detokenise_s += self.clock.last_token - started
        return match.is_stopped

    def untold(self) -> Piece | None:
        """Return the text that came since it was last told; None when there is none."""
        return Piece(0, self.num_told, "".join(self.fresh)) if self.fresh else None

    def note_told(self, piece: Piece) -> None:
        """Note that a piece was told; nothing may have come since it was made."""
        self.fresh.clear()
        self.num_told += len(piece.text)

    def completed(self, reason: FinishReason, num_output_tokens: int) -> JobResult:
        """Make the result of a job whose text is whole.

        `num_output_tokens` counts the end token too.
        """
        match = self.stops.feed(self.detokenizer.flush())
        self.text.append(match.text)
        if match.is_stopped:
            return self.stopped()
        self.text.append(self.stops.flush())
        if reason is FinishReason.STOP and not self._keeps_to_schema():
            message = "the schema became too complex while the answer was made"
            return self.failed(JobState.FAILED, FailureCode.ENGINE_ERROR, message)
        return self._result(reason, num_output_tokens)

    def stopped(self) -> JobResult:
        """Make the result of a job that a stop string ended."""
        return self._result(FinishReason.STOP, self.num_tokens)

    def failed(self, state: JobState, code: FailureCode, message: str) -> JobResult:
        """Make the result of a job that ended otherwise."""
        failure = JobResult.failure(state, code, message)
        return JobResult(
            state=state,
            error=failure.error,
            model=self.request.model,
            usage=self._usage(self.num_tokens),
            stages=self.clock.durations_ms(),
        )

    def _keeps_to_schema(self) -> bool:
        return self.constraint is None or self.constraint.is_matched()

    def _result(self, reason: FinishReason, num_output_tokens: int) -> JobResult:
        return JobResult(
            state=JobState.COMPLETED,
            choices=(Choice(0, "".join(self.text), reason.value),),
            usage=self._usage(num_output_tokens),
            model=self.request.model,
            stages=self.clock.durations_ms(),
        )

    def _usage(self, num_output_tokens: int) -> Usage:
        return Usage(len(self.sequence.prompt_ids), num_output_tokens, self.num_cached)


def prepare(claim: Claim, tokenizer: Tokenizer, grammars: Grammars) -> RunningJob:
    """Read a claim's request and tokenise its prompt; raise RequestError if it can't be run."""
    clock = StageClock()
    request = decode_request(claim.request)
    try:
        if request.messages is not None:
            prompt_ids = tokenizer.encode_chat(list(request.messages))
        elif request.prompt_ids is not None:
            prompt_ids = list(request.prompt_ids)
        else:
            prompt_ids = tokenizer.encode(request.prompt or "")
        sampling = _sampling(request, claim.lease.job_id)
        constraint = None if request.schema is None else grammars.constraint(request.schema)
    except (SamplingError, GrammarError) as error:
        raise RequestError(FailureCode.INVALID_REQUEST, str(error)) from error
    except ChatTemplateError as error:
        raise RequestError(FailureCode.INVALID_REQUEST, str(error), "messages") from error
    clock.tokenised = time.monotonic()
    deadline = None
    if claim.remaining_ms is not None:
        deadline = clock.received + claim.remaining_ms / 1000
    return RunningJob(
        claim=claim,
        request=request,
        sequence=Sequence(
            claim.lease.tag,
            prompt_ids,
            sampling,
            (float(claim.priority.level), float(claim.due_ms)),
            constraint,
        ),
        deadline=deadline,
        clock=clock,
        detokenizer=tokenizer.detokenizer(),
        stops=StopMatcher(request.stop),
        constraint=constraint,
    )


def _sampling(request: GenerateRequest, job_id: str) -> SamplingParams:
    """Read how to sample.

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
        seed=seed,
        stop_token_ids=frozenset(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
    )
