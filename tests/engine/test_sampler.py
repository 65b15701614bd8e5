import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SamplingError
from engine.sampler import Sampler, uniform_at
from engine.sequence import SamplingParams, Sequence

PROBABILITIES = torch.tensor([0.05, 0.5, 0.3, 0.15])


class FixedHead:
    """Scores every row alike."""

    def scores(self, hidden):
        return PROBABILITIES.log().expand(len(hidden), -1)

    def best(self, hidden):
        return self.scores(hidden).argmax(-1)


def sample(num_draws=400, **sampling):
    """Draw the first token of many sequences; each has a seed of its own."""
    sequences = [
        Sequence(str(seed), [1], SamplingParams(max_tokens=1, seed=seed, **sampling))
        for seed in range(num_draws)
    ]
    sampler = Sampler(FixedHead(), draw_seed=lambda: 0)
    return sampler.sample(torch.zeros(num_draws, 1), sequences)


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

    (token_id,) = sampler.sample(torch.zeros(1, 1), [alone])

    assert token_id == sample(8, temperature=1.0)[3]


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


@pytest.mark.parametrize(
    "wrong",
    [{"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"min_p": 2.0}],
)
def test_parameters_out_of_range_are_refused_by_name(wrong):
    with pytest.raises(SamplingError, match=next(iter(wrong))):
        SamplingParams(**({"max_tokens": 1} | wrong))
