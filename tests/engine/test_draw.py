"""Rows drawn at once are drawn as each alone would be."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draw import Draw, draw_tokens
from engine.sequence import SamplingParams

NUM_TOKENS = 9_000  # more than the most likely tokens that are looked at before all

limits = st.sampled_from(
    [
        {},
        {"top_p": 0.9},
        {"top_k": 40},
        {"top_k": 700, "top_p": 0.8},
        {"min_p": 0.05},
        {"top_p": 0.999, "min_p": 0.0001},
    ]
)
requests = st.tuples(limits, st.sampled_from([0.2, 0.8, 1.3]), st.floats(0, 1, exclude_max=True))


def draws_of(requests):
    return [
        Draw(row, SamplingParams(max_tokens=1, temperature=temperature, **limits), uniform)
        for row, (limits, temperature, uniform) in enumerate(requests)
    ]


@settings(max_examples=20, deadline=None)
@given(st.lists(requests, min_size=1, max_size=8), st.integers(0, 99), st.sampled_from([0.1, 4]))
def test_a_row_draws_the_same_token_alone_and_among_others(requests, seed, spread):
    scores = torch.randn(len(requests), NUM_TOKENS, generator=torch.Generator().manual_seed(seed))
    scores = (spread * scores).bfloat16().float()  # many are equal
    draws = draws_of(requests)

    together = draw_tokens(scores, draws)

    assert together == [draw_tokens(scores, [draw])[0] for draw in draws]


def test_rows_that_do_not_draw_are_left_out():
    scores = torch.full((3, 4), -10.0)
    scores[0, 3] = scores[2, 1] = 10.0
    sampling = SamplingParams(max_tokens=1, temperature=0.5)

    assert draw_tokens(scores, [Draw(2, sampling, 0.5), Draw(0, sampling, 0.5)]) == [1, 3]


def test_a_distribution_too_flat_for_a_few_likely_tokens_is_drawn_from_all_of_it():
    scores = torch.arange(NUM_TOKENS).repeat(2, 1) * -1e-4
    scores[1, 7] = 20.0
    sampling = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.97)

    flat, sharp = draw_tokens(scores, [Draw(row, sampling, 0.999) for row in range(2)])

    assert sharp == 7
    # 1 - exp(-8571e-4) is 97% of 1 - exp(-9000e-4), and 0.999 of that is 1 - exp(-8558e-4).
    assert abs(flat - 8_558) <= 2
