"""Which jobs are answered with an earlier answer, and which never."""

from dataclasses import replace

import pytest

from engine.grammar import Grammars
from queueing.job import JobResult, JobState
from queueing.kept_answers import KeptAnswers
from queueing.switches import Switch, SwitchBoard, SwitchWatch
from queueing.wire import GenerateRequest, encode_request
from tests.support.fake_engine import byte_tokenizer
from tests.support.jobs import MODEL, a_job, a_result, claim_one, enqueue
from workers.answer_cache import AnswerCache
from workers.running import RunningJob, prepare

LIFETIME_S = 60
PLAIN = GenerateRequest(model=MODEL, max_tokens=9, prompt="once more")
ANSWER = a_result("said before", tokens=2)


class Desk:
    """An engine worker's cache, and jobs for it."""

    def __init__(self, store, jobs):
        self._store = store
        self._jobs = jobs
        self.board = SwitchBoard(store)
        self.watch = SwitchWatch(self.board, lambda _flip: None)
        self.cache = self.cache_of("model")

    def cache_of(self, model_digest: str) -> AnswerCache:
        return AnswerCache(KeptAnswers(self._store), self.watch, model_digest)

    def flip(self, value: int | None) -> None:
        self.board.flip(Switch.REUSE_ANSWERS, value)
        self.watch = SwitchWatch(self.board, lambda _flip: None)
        self.watch.look_when_due()
        self.cache = self.cache_of("model")

    def running(self, request: GenerateRequest, tenant: str = "acme") -> RunningJob:
        enqueue(self._jobs, a_job(request=encode_request(request), tenant=tenant))
        tokenizer = byte_tokenizer()
        return prepare(claim_one(self._jobs), tokenizer, Grammars(tokenizer))

    def answer(self, request: GenerateRequest, result: JobResult = ANSWER) -> None:
        self.cache.note(self.running(request), result)
        self.cache.flush()


@pytest.fixture
def desk(store, jobs):
    desk = Desk(store, jobs)
    desk.flip(LIFETIME_S)
    return desk


def test_an_equal_job_gets_the_same_answer_and_says_where_from(desk):
    desk.answer(PLAIN)

    found = desk.cache.find(desk.running(PLAIN))

    assert found == replace(ANSWER, stages=found.stages)
    assert "reuse_ms" in found.stages
    assert "decode_ms" not in found.stages


def test_a_prompt_in_other_words_of_the_same_tokens_is_equal(desk):
    desk.answer(PLAIN)

    as_ids = replace(PLAIN, prompt=None, prompt_ids=tuple(byte_tokenizer().encode("once more")))

    assert desk.cache.find(desk.running(as_ids)) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "once  more"},
        {"max_tokens": 8},
        {"stop": ("x",)},
        {"n": 2},
        {"seed": 3},
        {"num_logprobs": 0},
        {"logit_bias": {"7": 1.0}},
        {"stop_token_ids": (3,)},
        {"ignore_eos": True},
    ],
)
def test_a_job_that_differs_is_not_equal(desk, change):
    desk.answer(PLAIN)

    assert desk.cache.find(desk.running(replace(PLAIN, **change))) is None


def test_another_tenants_equal_job_is_not_answered_from_it(desk):
    desk.answer(PLAIN)

    assert desk.cache.find(desk.running(PLAIN, tenant="umbra")) is None


def test_another_models_equal_job_is_not_answered_from_it(desk):
    desk.answer(PLAIN)

    assert desk.cache_of("other").find(desk.running(PLAIN)) is None


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({"temperature": 0.7}, False),
        ({"temperature": 0.7, "seed": 5}, True),
        ({"stream": True}, False),
    ],
)
def test_only_what_is_decided_is_kept_and_nothing_that_streams(desk, change, is_kept):
    request = replace(PLAIN, **change)
    desk.answer(request)

    assert (desk.cache.find(desk.running(request)) is not None) is is_kept


def test_an_answer_lives_as_long_as_the_switch_says(desk, store):
    desk.answer(PLAIN)

    (key,) = store.scan_iter("{pm}:tenant:acme:answer:*")

    assert 0 < store.ttl(key) <= LIFETIME_S


def test_with_the_switch_off_nothing_is_kept_or_found(desk, store):
    desk.answer(PLAIN)
    desk.flip(None)

    desk.answer(replace(PLAIN, prompt="another"))

    assert desk.cache.find(desk.running(PLAIN)) is None
    assert len(list(store.scan_iter("{pm}:tenant:acme:answer:*"))) == 1


def test_a_job_that_did_not_complete_is_not_kept(desk, store):
    desk.answer(PLAIN, replace(ANSWER, state=JobState.FAILED))

    assert list(store.scan_iter("{pm}:tenant:acme:answer:*")) == []
