from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ops.bench.arrivals import poisson_arrivals
from ops.bench.concurrency import requests_for
from ops.bench.limit import simulate_steps
from ops.bench.open_loop import draw_requests
from ops.bench.shared_prefix import NUM_REQUESTS, NUM_SHARED, shared_prefix_requests
from ops.bench.task import TokenRequest
from ops.bench.workload import read_workload

requests = st.builds(
    TokenRequest,
    id=st.uuids().map(str),
    prompt_ids=st.lists(st.integers(0, 9), min_size=1, max_size=40),
    max_tokens=st.integers(1, 12),
)


def a_request(number: int, num_prompt: int = 4, max_tokens: int = 2) -> TokenRequest:
    return TokenRequest(f"{number}", [number] * num_prompt, max_tokens)


def test_the_standard_workload_is_whole():
    workload = read_workload()

    assert len({request.id for request in workload}) == 96
    assert sum(request.max_tokens for request in workload) == 7_352


def test_arrivals_come_in_order_and_at_the_rate_asked_for():
    arrivals = poisson_arrivals(rate=5.0, num_requests=20_000, seed=1)

    assert all(earlier <= later for earlier, later in pairwise(arrivals))
    assert 4.8 < len(arrivals) / arrivals[-1] < 5.2


def test_arrivals_are_as_irregular_as_poissons():
    gaps = [later - earlier for earlier, later in pairwise(poisson_arrivals(1.0, 20_000, seed=2))]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)

    assert 0.9 < variance / mean**2 < 1.1


def test_the_same_seed_lets_requests_come_at_the_same_instants():
    assert poisson_arrivals(2.0, 10, seed=3) == poisson_arrivals(2.0, 10, seed=3)


def test_an_open_loop_repeats_the_workload_evenly_under_new_ids():
    drawn = draw_requests([a_request(number) for number in range(4)], num_drawn=10, seed=1)

    assert [request.id for request in drawn] == [f"{index}" for index in range(10)]
    assert sorted(request.prompt_ids[0] for request in drawn[:8]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_few_in_flight_are_measured_on_a_part_of_the_workload_and_many_on_all_of_it():
    workload = [a_request(number) for number in range(96)]

    few, many = requests_for(workload, 1), requests_for(workload, 64)

    assert [request.id for request in few] == [f"{index * 4}" for index in range(24)]
    assert many == workload


def test_requests_of_the_prefix_bench_share_their_beginning_and_nothing_else():
    source = [TokenRequest("all", list(range(10_000)), 1)]

    made = shared_prefix_requests(source)

    assert len(made) == NUM_REQUESTS
    assert {tuple(request.prompt_ids[:NUM_SHARED]) for request in made} == {
        tuple(range(NUM_SHARED))
    }
    assert len({request.prompt_ids[NUM_SHARED] for request in made}) == NUM_REQUESTS


@given(st.lists(requests, min_size=1, max_size=8), st.integers(1, 4), st.integers(4, 16))
def test_simulated_steps_compute_every_token_once_and_keep_to_their_size(
    asked, in_flight, max_step_tokens
):
    steps = simulate_steps(asked, in_flight, max_step_tokens)

    # The last token of an answer is never computed: nothing comes after it.
    computed = sum(len(request.prompt_ids) + request.max_tokens - 1 for request in asked)
    assert sum(step.num_tokens for step in steps) == computed
    assert sum(step.num_sampled for step in steps) == sum(each.max_tokens for each in asked)
    assert all(0 < step.num_tokens <= max_step_tokens for step in steps)


def test_one_request_at_a_time_takes_a_step_for_each_token_it_makes():
    steps = simulate_steps([a_request(1, num_prompt=4, max_tokens=3)], 1, max_step_tokens=16)

    assert [step.num_tokens for step in steps] == [4, 1, 1]
