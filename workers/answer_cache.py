"""AnswerCache: repeated prompts are answered with what was answered before, while a switch says so.

Owns which jobs are equal: those of one tenant and one model's bytes whose prompt tokens, sampling,
stops and schema are the same, and whose text is decided by them: greedy, or with a seed. A streamed
job is never answered from here. A store that is away means only that the engine does the work.
"""

import hashlib
import json
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TypeGuard

from engine.sequence import SamplingParams
from queueing.errors import StoreUnavailable
from queueing.job import JobResult, JobState
from queueing.kept_answers import KeptAnswers
from queueing.switches import Switch, SwitchWatch
from workers.engine_job import EngineJob
from workers.running import RunningJob


class AnswerCache:
    """The kept answers as one engine worker uses them.

    `find` is for the thread that begins jobs, `note` and `flush` for the one that ends them.
    """

    def __init__(self, kept: KeptAnswers, switches: SwitchWatch, model_digest: str) -> None:
        self._kept = kept
        self._switches = switches
        self._model_digest = model_digest
        self._noted: dict[tuple[str, str], JobResult] = {}

    def find(self, job: EngineJob) -> JobResult | None:
        """Return the answer of an equal job; None when there is none, or the switch is off."""
        if self._lifetime_s is None or not _is_decided(job):
            return None
        begun = time.monotonic()
        with suppress(StoreUnavailable):
            found = self._kept.get(job.claim.tenant, self._digest(job))
            if found is not None:
                looked_ms = round((time.monotonic() - begun) * 1000, 3)
                return replace(found, stages=job.clock.durations_ms() | {"reuse_ms": looked_ms})
        return None

    def note(self, job: EngineJob, result: JobResult) -> None:
        """Remember a completed job's answer until the next flush."""
        if self._lifetime_s is None or result.state is not JobState.COMPLETED:
            return
        if _is_decided(job):
            self._noted[job.claim.tenant, self._digest(job)] = result

    def flush(self) -> None:
        """Keep what was noted for as many seconds as the switch says; or forget it."""
        if not self._noted:
            return
        noted, self._noted = self._noted, {}
        if self._lifetime_s is not None:
            with suppress(StoreUnavailable):
                self._kept.put_many(noted, self._lifetime_s)

    @property
    def _lifetime_s(self) -> int | None:
        return self._switches.value(Switch.REUSE_ANSWERS)

    def _digest(self, job: RunningJob) -> str:
        request = job.request
        what_decides = [
            self._model_digest,
            list(job.answers[0].sequence.prompt_ids),
            [_spelled(answer.sequence.sampling) for answer in job.answers],
            list(request.stop),
            request.schema,
        ]
        return hashlib.sha256(json.dumps(what_decides, sort_keys=True).encode()).hexdigest()


def _is_decided(job: EngineJob) -> TypeGuard[RunningJob]:
    """Tell whether an equal job would get the same text from the engine."""
    if not isinstance(job, RunningJob) or job.request.stream:
        return False
    return job.request.temperature == 0 or job.request.seed is not None


def _spelled(sampling: SamplingParams) -> dict[str, Any]:  # of as many types as it has fields
    return asdict(sampling) | {"stop_token_ids": sorted(sampling.stop_token_ids)}
