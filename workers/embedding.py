"""EmbeddingJob: a claimed job whose prompt becomes one vector.

Made by the consuming thread, then owned by the delivery thread alone; the stepping thread sees only
its sequence and its deadline. Must not know Redis, Celery, or how the vector is computed.
"""

import sys
import time
from array import array
from base64 import b64encode
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from math import isfinite

from engine.plan import Completion
from engine.sequence import Pooling, SamplingParams, Sequence
from engine.tokenizer import Tokenizer
from queueing.errors import FailureCode
from queueing.job import Claim, JobResult, JobState, Usage
from queueing.wire import EmbedRequest, decode_embed_request
from workers.engine_job import StageClock, deadline_of, rank_of

_NOTHING_SAMPLED = SamplingParams(max_tokens=0)


@dataclass(slots=True, eq=False)
class EmbeddingJob:
    """One embedding job in the engine; an EngineJob."""

    claim: Claim
    request: EmbedRequest
    sequence: Sequence
    deadline: float | None
    clock: StageClock
    completion: Completion | None = None

    @property
    def tag(self) -> str:
        """The lease's tag, which is also the sequence's id."""
        return self.claim.lease.tag

    @property
    def sequences(self) -> Many[Sequence]:
        """Its one sequence."""
        return (self.sequence,)

    @property
    def has_ended(self) -> bool:
        """True once the vector is whole."""
        return self.completion is not None

    @property
    def num_steps(self) -> int:
        """Count the steps that gave it a token: none does."""
        return 0

    def is_whole(self, _sequence_id: str) -> bool:
        """Tell whether the vector is whole."""
        return self.has_ended

    def end(self, completion: Completion) -> None:
        """Take the vector."""
        self.completion = completion
        self.clock.first_token = time.monotonic()

    def result(self) -> JobResult:
        """Make the result of a job whose vector is whole; JSON and JSON's readers take no NaN."""
        assert self.completion is not None, "the vector is not whole"
        vector = self.completion.vector
        assert vector is not None, "a pooled sequence ends with a vector"
        if not all(map(isfinite, vector)):
            message = "the model's numbers overflowed: there is no vector of this input"
            return self.failed(JobState.FAILED, FailureCode.ENGINE_ERROR, message)
        return JobResult(
            state=JobState.COMPLETED,
            vector=encode_vector(vector),
            usage=self._usage(),
            model=self.request.model,
            stages=self.clock.durations_ms(),
        )

    def failed(self, state: JobState, code: FailureCode, message: str) -> JobResult:
        """Make the result of a job that ended without a vector."""
        return replace(
            JobResult.failure(state, code, message),
            model=self.request.model,
            usage=self._usage(),
            stages=self.clock.durations_ms(),
        )

    def _usage(self) -> Usage:
        cached = 0 if self.completion is None else self.completion.num_cached_tokens
        return Usage(len(self.sequence.prompt_ids), 0, cached)


def prepare_embedding(claim: Claim, tokenizer: Tokenizer, pooling: Pooling) -> EmbeddingJob:
    """Read a claim's request and tokenise its prompt; raises UnknownVersion."""
    clock = StageClock()
    request = decode_embed_request(claim.request)
    if request.prompt_ids is not None:
        prompt_ids = list(request.prompt_ids)
    else:
        prompt_ids = tokenizer.encode(request.prompt or "")
    sequence = Sequence(
        claim.lease.tag, prompt_ids, _NOTHING_SAMPLED, rank_of(claim), pooling=pooling
    )
    clock.tokenised = time.monotonic()
    return EmbeddingJob(claim, request, sequence, deadline_of(claim, clock), clock)


def encode_vector(vector: "array[float]") -> str:
    """Write float32 numbers as results carry them: little-endian, in base64."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return b64encode(vector.tobytes()).decode()
