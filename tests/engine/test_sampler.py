from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.draw import uniform_at
from engine.errors import SamplingError
from engine.sampler import Sampler
from engine.sequence import SamplingParams, Sequence

PROBABILITIES = torch.tensor([0.05, 0.5, 0.3, 0.15])


class FixedHead:
    """Scores every row alike."""

    def __init__(self, probabilities=PROBABILITIES):
        self.probabilities = probabilities

    def scores(self, hidden):
        return self.probabilities.log().repeat(len(hidden), 1)

    def best(self, hidden):
        return self.scores(hidden).argmax(-1)


def sample(num_draws=400, **sampling):
    """Draw the first token of many sequences; each has a seed of its own."""
    sequences = [
        Sequence(str(seed), [1], SamplingParams(max_tokens=1, seed=seed, **sampling))
        for seed in range(num_draws)
    ]
    sampler = Sampler(FixedHead(), draw_seed=lambda: 0)
    return [choice.token_id for choice in sampler.sample(torch.zeros(num_draws, 1), sequences)]


def test_greedy_takes_the_most_likely():
    assert set(sample(temperature=0.0)) == {1}


def test_draws_follow_the_probabilities():
    drawn = torch.bincount(torch.tensor(sample(4_000, temperature=1.0)), minlength=4) / 4_000

    assert torch.allclose(drawn, PROBABILITIES, atol=0.03)


def test_a_low_temperature_sharpens():
    assert sample(temperature=0.25).count(1) > 340


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 0.5}, {1}),
        ({"top_p": 0.51}, {1, 2}),
        ({"top_p": 0.9}, {1, 2, 3}),
        ({"min_p": 0.5}, {1, 2}),
        ({"top_k": 3, "min_p": 0.9}, {1}),
    ],
)
def test_limits_leave_only_likely_tokens(limits, allowed):
    assert set(sample(temperature=1.0, **limits)) == allowed


def test_the_same_seed_draws_the_same_tokens_whatever_runs_beside_it():
    alone = Sequence("a", [1], SamplingParams(max_tokens=1, temperature=1.0, seed=3))
    sampler = Sampler(FixedHead(), draw_seed=lambda: 0)

    (choice,) = sampler.sample(torch.zeros(1, 1), [alone])

    assert choice.token_id == sample(8, temperature=1.0)[3]


def test_a_sequence_without_a_seed_draws_one_and_keeps_it():
    seeds = iter([11, 12])
    sampler = Sampler(FixedHead(), draw_seed=lambda: next(seeds))
    sequence = Sequence("a", [1], SamplingParams(max_tokens=2, temperature=1.0))

    sampler.sample(torch.zeros(1, 1), [sequence])
    sampler.sample(torch.zeros(1, 1), [sequence])

    assert sequence.random_seed == 11


@given(st.integers(0, 2**63 - 1), st.integers(0, 10_000))
def test_the_random_stream_stays_between_zero_and_one(seed, index):
    assert 0.0 <= uniform_at(seed, index) < 1.0


def test_neighbouring_seeds_are_not_neighbouring_streams():
    numbers = torch.tensor([uniform_at(seed, 0) for seed in range(2_000)])

    assert abs(float(numbers.mean()) - 0.5) < 0.02
    assert abs(float(torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1])) < 0.06


def choose(answer_ids=(), prompt_ids=(3,), probabilities=PROBABILITIES, **sampling):
    """Choose the next token of one sequence that already has an answer."""
    sequence = Sequence("a", list(prompt_ids), SamplingParams(max_tokens=9, **sampling))
    sequence.known_ids += answer_ids
    sampler = Sampler(FixedHead(probabilities), draw_seed=lambda: 0)
    (choice,) = sampler.sample(torch.zeros(1, 1), [sequence])
    return choice


def test_a_bias_lifts_or_bans_a_token():
    assert choose(logit_bias={0: 100.0}).token_id == 0
    assert choose(logit_bias={1: -100.0}).token_id == 2


def test_the_presence_penalty_counts_a_token_of_the_answer_once():
    assert choose(answer_ids=[1, 1, 1], presence_penalty=0.4).token_id == 1
    assert choose(answer_ids=[1], presence_penalty=0.6).token_id == 2


def test_the_frequency_penalty_counts_every_time():
    assert choose(answer_ids=[1], frequency_penalty=0.3).token_id == 1
    assert choose(answer_ids=[1, 1], frequency_penalty=0.3).token_id == 2


def test_presence_and_frequency_leave_the_prompt_alone():
    penalties = {"presence_penalty": 2.0, "frequency_penalty": 2.0}

    assert choose(prompt_ids=[1, 1], **penalties).token_id == 1


def test_the_repetition_penalty_also_counts_the_prompt():
    assert choose(prompt_ids=[1], repetition_penalty=2.0).token_id == 2
    assert choose(answer_ids=[1], repetition_penalty=2.0).token_id == 2


def test_log_probabilities_are_the_models_own():
    choice = choose(num_logprobs=2, temperature=1.0, top_k=1, logit_bias={0: 100.0})

    assert choice.token_id == 0
    assert choice.logprobs.logprob == pytest.approx(log(0.05), abs=1e-5)
    assert [token_id for token_id, _ in choice.logprobs.top] == [1, 2]
    assert choice.logprobs.top[0][1] == pytest.approx(log(0.5), abs=1e-5)


def test_log_probabilities_are_only_there_where_they_are_asked_for():
    assert choose().logprobs is None
    assert choose(num_logprobs=0).logprobs.top == ()


@pytest.mark.parametrize("limits", [{"top_p": 0.999}, {"min_p": 0.01}, {"top_k": 700}])
def test_flat_distributions_are_drawn_from_whole(limits):
    flat = torch.ones(2_000) / 2_000
    sampler = Sampler(FixedHead(flat), draw_seed=lambda: 0)
    sequences = [
        Sequence(str(seed), [1], SamplingParams(1, temperature=1.0, seed=seed, **limits))
        for seed in range(200)
    ]

    chosen = {choice.token_id for choice in sampler.sample(torch.zeros(200, 1), sequences)}

    assert len(chosen) > 150


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": -1},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 2.0},
        {"presence_penalty": 3.0},
        {"logit_bias": {1: 101.0}},
        {"num_logprobs": -1},
    ],
)
def test_parameters_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(SamplingError, match=next(iter(wrong))):
        SamplingParams(**({"max_tokens": 1} | wrong))
