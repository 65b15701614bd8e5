from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission import AdmissionEstimate
from engine.blocks import BlockPool
from engine.scheduler import Scheduler, StepLimits
from engine.sequence import FinishReason, Pooling, SamplingParams, Sequence

EOS = 0
BLOCK_SIZE = 4


def a_scheduler(
    num_blocks=64, max_sequences=4, max_step_tokens=16, share=None, eos=frozenset(), window=None
):
    return Scheduler(
        BlockPool(num_blocks, BLOCK_SIZE, cache_key=b"weights", window=window),
        StepLimits(max_sequences, max_step_tokens),
        AdmissionEstimate(share),
        frozenset(eos),
    )


def a_sequence(name="a", num_prompt=3, max_tokens=4, rank=(0.0, 0.0), **sampling):
    # Distinct prompts, so that only tests that want the prefix cache meet it.
    prompt_ids = [crc32(f"{name} {index}".encode()) for index in range(num_prompt)]
    return Sequence(name, prompt_ids, SamplingParams(max_tokens=max_tokens, **sampling), rank)


def step(scheduler, token_id=7):
    plan = scheduler.plan()
    num_sampled = sum(chunk.samples for chunk in plan.chunks)
    return plan, scheduler.commit(plan, [token_id] * num_sampled)


def tokens_of(plan):
    return {chunk.sequence.id: chunk.num_tokens for chunk in plan.chunks}


def test_a_prompt_is_computed_and_its_first_token_sampled_in_one_step():
    scheduler = a_scheduler()
    scheduler.add(a_sequence("a", num_prompt=3))

    plan, _ = step(scheduler)

    assert tokens_of(plan) == {"a": 3}
    assert tokens_of(step(scheduler)[0]) == {"a": 1}


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks():
    scheduler = a_scheduler(max_step_tokens=16)
    scheduler.add(a_sequence("a", num_prompt=40))

    plans = [step(scheduler)[0] for _ in range(3)]

    assert [tokens_of(plan)["a"] for plan in plans] == [16, 16, 8]
    assert [plan.chunks[0].samples or plan.chunks[0].start for plan in plans] == [0, 16, 32]


def test_a_long_prompt_leaves_a_token_for_every_running_sequence():
    scheduler = a_scheduler(max_step_tokens=16)
    scheduler.add(a_sequence("short", num_prompt=1, rank=(0.0, 1.0)))
    step(scheduler)
    scheduler.add(a_sequence("long", num_prompt=100, rank=(0.0, 0.0)))
    step(scheduler)

    plan, _ = step(scheduler)

    assert tokens_of(plan) == {"long": 15, "short": 1}


def test_sequences_join_and_leave_between_any_two_steps():
    scheduler = a_scheduler()
    scheduler.add(a_sequence("a", num_prompt=2, max_tokens=2))
    step(scheduler)
    scheduler.add(a_sequence("b", num_prompt=2, max_tokens=2))

    plan, done = step(scheduler)

    assert tokens_of(plan) == {"a": 1, "b": 2}
    assert [completion.sequence_id for completion in done] == ["a"]
    assert tokens_of(step(scheduler)[0]) == {"b": 1}


def test_the_lowest_rank_joins_first():
    scheduler = a_scheduler(max_sequences=1)
    scheduler.add(a_sequence("later", rank=(1.0, 9.0)))
    scheduler.add(a_sequence("sooner", rank=(1.0, 2.0)))

    assert tokens_of(step(scheduler)[0]) == {"sooner": 3}


def test_a_more_urgent_class_takes_the_slot_of_a_less_urgent_one():
    scheduler = a_scheduler(max_sequences=1)
    scheduler.add(a_sequence("bulk", rank=(2.0, 0.0)))
    step(scheduler)
    scheduler.add(a_sequence("realtime", rank=(0.0, 5.0)))

    plan, _ = step(scheduler)

    assert plan.preempted_ids == ("bulk",)
    assert tokens_of(plan) == {"realtime": 3}


def test_the_same_class_never_takes_a_slot():
    scheduler = a_scheduler(max_sequences=1)
    scheduler.add(a_sequence("first", rank=(1.0, 5.0)))
    step(scheduler)
    scheduler.add(a_sequence("second", rank=(1.0, 1.0)))

    plan, _ = step(scheduler)

    assert plan.preempted_ids == ()
    assert tokens_of(plan) == {"first": 1}


def test_a_more_urgent_prompt_joins_before_the_rest_of_a_less_urgent_one():
    scheduler = a_scheduler(max_step_tokens=16)
    scheduler.add(a_sequence("bulk", num_prompt=100, rank=(2.0, 0.0)))
    step(scheduler)
    scheduler.add(a_sequence("realtime", num_prompt=12, rank=(0.0, 5.0)))

    plan, _ = step(scheduler)

    assert tokens_of(plan)["realtime"] == 12


def test_beside_a_more_urgent_prompt_an_eighth_of_a_step_is_left_for_others():
    scheduler = a_scheduler(max_step_tokens=32)
    scheduler.add(a_sequence("bulk", num_prompt=100, rank=(2.0, 0.0)))
    step(scheduler)
    scheduler.add(a_sequence("realtime", num_prompt=3, rank=(0.0, 5.0)))

    beside, after = step(scheduler)[0], step(scheduler)[0]

    assert tokens_of(beside) == {"realtime": 3, "bulk": 1 + 4}
    assert tokens_of(after) == {"realtime": 1, "bulk": 31}


def test_the_least_urgent_yields_when_blocks_run_out_and_finishes_later():
    scheduler = a_scheduler(num_blocks=6, share=0.0)
    scheduler.add(a_sequence("urgent", num_prompt=8, max_tokens=12, rank=(0.0, 0.0)))
    scheduler.add(a_sequence("patient", num_prompt=8, max_tokens=12, rank=(0.0, 1.0)))
    steps = [step(scheduler) for _ in range(40)]

    finished = [completion for _, done in steps for completion in done]

    assert [completion.sequence_id for completion in finished] == ["urgent", "patient"]
    assert finished[0].num_preemptions == 0
    assert finished[1].num_preemptions >= 1
    assert len(finished[1].token_ids) == 12


def test_worst_case_admission_never_preempts():
    scheduler = a_scheduler(num_blocks=6, share=1.0)
    scheduler.add(a_sequence("a", num_prompt=8, max_tokens=12))
    scheduler.add(a_sequence("b", num_prompt=8, max_tokens=12))

    assert [step(scheduler)[0].preempted_ids for _ in range(30)] == [()] * 30
    assert scheduler.num_running + scheduler.num_waiting == 0


def test_the_end_token_ends_a_sequence_and_is_not_part_of_the_answer():
    scheduler = a_scheduler(eos={EOS})
    scheduler.add(a_sequence("a"))
    step(scheduler, token_id=7)

    _, (completion,) = step(scheduler, token_id=EOS)

    assert completion.token_ids == (7,)
    assert completion.finish_reason is FinishReason.STOP
    assert completion.num_output_tokens == 2


def test_the_end_token_can_be_ignored():
    scheduler = a_scheduler(eos={EOS})
    scheduler.add(a_sequence("a", max_tokens=1, ignore_eos=True))

    _, (completion,) = step(scheduler, token_id=EOS)

    assert completion.token_ids == (EOS,)
    assert completion.finish_reason is FinishReason.LENGTH


def test_a_stop_token_of_the_sequence_ends_only_that_sequence():
    scheduler = a_scheduler()
    scheduler.add(a_sequence("a", stop_token_ids=frozenset({7})))
    scheduler.add(a_sequence("b"))

    _, done = step(scheduler, token_id=7)

    assert [completion.sequence_id for completion in done] == ["a"]


def test_abort_frees_the_blocks_at_once():
    scheduler = a_scheduler(num_blocks=8)
    scheduler.add(a_sequence("a", num_prompt=12))
    step(scheduler)

    assert scheduler.abort("a")

    assert scheduler.num_free_blocks == 8
    assert not scheduler.abort("a")


def test_a_second_equal_prompt_only_computes_what_is_new():
    scheduler = a_scheduler(max_step_tokens=64)
    scheduler.add(a_sequence("same", num_prompt=16, max_tokens=30))
    step(scheduler)
    again = a_sequence("same", num_prompt=16)
    again.id = "again"
    scheduler.add(again)

    plan, _ = step(scheduler)

    assert tokens_of(plan)["again"] == 4
    assert again.num_cached == 12


def test_equal_beginnings_that_arrive_together_are_computed_once():
    scheduler = a_scheduler(num_blocks=200, max_sequences=8, max_step_tokens=64)
    system_prompt = list(range(40))
    for name in "abcdefgh":
        prompt_ids = [*system_prompt, ord(name)]
        scheduler.add(Sequence(name, prompt_ids, SamplingParams(max_tokens=8)))

    first, _ = step(scheduler)
    second, _ = step(scheduler)

    assert tokens_of(first) == {"a": 41}
    assert tokens_of(second) == dict.fromkeys("abcdefgh", 1)
    assert second.num_cached_tokens == 7 * 40


def test_unequal_beginnings_do_not_wait_for_each_other():
    scheduler = a_scheduler(max_step_tokens=64)
    scheduler.add(a_sequence("a", num_prompt=30))
    scheduler.add(a_sequence("b", num_prompt=30))

    assert tokens_of(step(scheduler)[0]) == {"a": 30, "b": 30}


def test_a_sequence_longer_than_the_pool_runs_where_a_window_slides():
    scheduler = a_scheduler(num_blocks=8, max_step_tokens=8, window=8)
    sequence = a_sequence("a", num_prompt=50, max_tokens=20)
    scheduler.add(sequence)

    held = []
    while scheduler.num_running + scheduler.num_waiting:
        _, done = step(scheduler)
        held.append(8 - scheduler.num_free_blocks)

    assert done[0].token_ids == (7,) * 20
    assert max(held) <= scheduler.most_blocks(70) < scheduler.most_blocks(16) + 3
    assert done[0].num_preemptions == 0


def test_measured_shares_admit_more_than_the_worst_case():
    estimate = AdmissionEstimate()
    sequence = a_sequence("a", num_prompt=10, max_tokens=100)
    before = estimate.expected_tokens(sequence)
    for _ in range(200):
        estimate.observe(sequence)

    assert before == 110
    assert estimate.expected_tokens(sequence) < 40


requests = st.fixed_dictionaries(
    {
        "num_prompt": st.integers(1, 20),
        "max_tokens": st.integers(1, 12),
        "pooling": st.sampled_from([None, *Pooling]),
        "rank": st.tuples(st.integers(0, 2), st.integers(0, 5)),
        "prefix": st.integers(0, 2),
        "arrives_at": st.integers(0, 12),
        "aborted_at": st.one_of(st.none(), st.integers(0, 20)),
    }
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(requests, max_size=12),
    st.integers(9, 20),
    st.integers(4, 24),
    st.sampled_from([0.0, 0.5, 1.0, None]),
    st.sampled_from([None, 1, 3, 8, 13]),
)
def test_every_schedule_conserves_blocks_keeps_its_budget_and_starves_nobody(
    wanted, num_blocks, max_step_tokens, share, window
):
    scheduler = a_scheduler(num_blocks, 4, max_step_tokens, share, window=window)
    sequences = [
        Sequence(
            str(index),
            [want["prefix"]] * want["num_prompt"],
            SamplingParams(max_tokens=0 if want["pooling"] else want["max_tokens"]),
            want["rank"],
            pooling=want["pooling"],
        )
        for index, want in enumerate(wanted)
    ]
    ended = set()
    for now in range(2_000):
        for sequence, want in zip(sequences, wanted, strict=True):
            if want["arrives_at"] == now:
                scheduler.add(sequence)
            if want["aborted_at"] == now and scheduler.abort(sequence.id):
                ended.add(sequence.id)
        plan, done = step(scheduler, token_id=now % 3)
        ended |= {completion.sequence_id for completion in done}
        scheduler.check_integrity()
        assert plan.num_tokens <= max_step_tokens
        for sequence in sequences:
            assert len(sequence.table.held) <= scheduler.most_blocks(sequence.num_known)
        assert all(chunk.num_tokens >= 1 for chunk in plan.chunks)
        ranks = [chunk.sequence.rank for chunk in plan.chunks]
        assert ranks == sorted(ranks), "a less urgent one was served first"
        assert len({chunk.sequence.id for chunk in plan.chunks}) == len(plan.chunks) <= 4
        if now > 20 and not scheduler.num_running + scheduler.num_waiting:
            break
        assert plan.chunks or not scheduler.num_waiting, "waiting work and an idle step"

    arrived = {str(index) for index, want in enumerate(wanted)}
    assert ended == arrived
    assert scheduler.num_free_blocks == num_blocks
