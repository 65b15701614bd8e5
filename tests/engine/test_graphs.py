"""Steps of single tokens are replayed from recordings, and nobody can tell by the answers.

There is no CUDA graph on a CPU. The stand-in keeps to what one does: a replay computes what was
recorded, from the same buffers, into the same result.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.admission import AdmissionEstimate
from engine.blocks import BlockPool
from engine.engine import Engine, EngineLimits
from engine.graphs import GraphedModel, Recording, graph_sizes
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton.kernels import TritonKernels
from engine.kv_cache import CacheFormat, KvCache
from engine.model.build import Placement, load_decoder_weights
from engine.model.decoder import Decoder
from engine.model.families import read_model_config
from engine.pooling import Pooler
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.scheduler import Scheduler, StepLimits
from engine.sequence import Pooling, SamplingParams, Sequence
from engine.step_buffers import Padding, StepBuffers, StepSizes

CPU = torch.device("cpu")
NUM_BLOCKS, BLOCK_SIZE, MAX_SEQUENCES, MAX_CONTEXT = 40, 4, 6, 64
SIZES = StepSizes(32, MAX_SEQUENCES, MAX_CONTEXT // BLOCK_SIZE)
PADDING = Padding((1, 2, 5), block=NUM_BLOCKS)


@dataclass
class Replay:
    """What a CUDA graph does, on a CPU."""

    compute: Callable[[], torch.Tensor]
    hidden: torch.Tensor
    num_replays: int = 0

    def replay(self):
        self.num_replays += 1
        self.hidden.copy_(self.compute())


class Recorder:
    """Keeps all recordings, the largest first."""

    def __init__(self):
        self.replays = []

    def __call__(self, compute):
        self.replays.append(Replay(compute, compute().clone()))
        return Recording(self.replays[-1], self.replays[-1].hidden)

    def counts(self):
        return {len(replay.hidden): replay.num_replays for replay in self.replays}


class Parts:
    """An engine put together by hand, with graphs or without."""

    def __init__(self, folder, kernels, *, is_graphed):
        model = read_model_config(folder)
        weights = load_decoder_weights(
            folder, model, kernels, Placement(torch.float32, CPU, MAX_CONTEXT)
        )
        blocks = CacheFormat(BLOCK_SIZE, torch.float32, kernels.cache_layout)
        self.cache = KvCache(model, NUM_BLOCKS + 1, blocks, CPU)
        for layer in self.cache.layers:
            layer.keys.fill_(float("nan"))
            layer.values.fill_(float("nan"))
        padding = PADDING if is_graphed else None
        buffers = StepBuffers(SIZES, BLOCK_SIZE, CPU, padding)
        decoder = Decoder(weights, kernels, self.cache)
        self.recorder = Recorder()
        self.network: Decoder | GraphedModel = decoder
        if is_graphed:
            self.network = GraphedModel(decoder, buffers, PADDING, self.recorder)
        scheduler = Scheduler(
            BlockPool(NUM_BLOCKS, BLOCK_SIZE, cache_key=None),
            StepLimits(MAX_SEQUENCES, SIZES.num_tokens),
            AdmissionEstimate(),
            frozenset(),
        )
        self.engine = Engine(
            scheduler,
            ModelRunner(self.network, buffers),
            Sampler(self.network, draw_seed=lambda: 1),
            Pooler(),
            EngineLimits(model.vocab_size, MAX_CONTEXT, MAX_SEQUENCES, NUM_BLOCKS, BLOCK_SIZE),
        )


@pytest.fixture
def make(tiny_folder):
    """Return a function that puts an engine together."""
    kernels = ReferenceKernels(torch.float32, is_packed=False)
    return lambda **how: Parts(tiny_folder, kernels, **how)


def some_sequences(num_sequences):
    generator = torch.Generator().manual_seed(7)
    return [
        Sequence(
            f"{index}",
            torch.randint(250, (1 + 3 * index % 11,), generator=generator).tolist(),
            SamplingParams(max_tokens=3 + index % 4, ignore_eos=True),
        )
        for index in range(num_sequences)
    ]


def answers(engine, run_all, sequences):
    return {name: done.token_ids for name, done in run_all(engine, sequences).items()}


def test_answers_are_those_of_steps_computed_as_they_come(make, run_all):
    graphed, plain = make(is_graphed=True), make(is_graphed=False)

    ours = answers(graphed.engine, run_all, some_sequences(9))

    assert ours == answers(plain.engine, run_all, some_sequences(9))
    assert all(count > 0 for count in graphed.recorder.counts().values())


def test_the_kernels_of_a_gpu_answer_as_the_plain_ones_do(make, tiny_folder, run_all):
    graphed = Parts(tiny_folder, TritonKernels(torch.float32), is_graphed=True)

    ours = answers(graphed.engine, run_all, some_sequences(3))

    assert ours == answers(make(is_graphed=False).engine, run_all, some_sequences(3))
    assert graphed.recorder.counts()[5] > 0


def test_a_step_of_three_is_replayed_as_one_of_five(make):
    parts = make(is_graphed=True)
    for sequence in some_sequences(3):
        parts.engine.add(sequence)
    parts.engine.step()
    before = parts.recorder.counts()

    output = parts.engine.step()

    assert len(output.tokens) == 3
    assert parts.recorder.counts() == before | {5: before[5] + 1}


def test_a_step_with_a_prompt_chunk_or_too_many_rows_is_not_replayed(make):
    parts = make(is_graphed=True)
    for sequence in some_sequences(6):
        parts.engine.add(sequence)

    parts.engine.step()  # prompts
    parts.engine.step()  # six rows, and the largest recording has five

    assert set(parts.recorder.counts().values()) == {0}


def test_tokens_that_are_only_pooled_are_replayed_beside_those_that_sample(make):
    graphed, plain = make(is_graphed=True), make(is_graphed=False)
    for parts in (graphed, plain):
        nothing = SamplingParams(max_tokens=0)
        parts.engine.add(Sequence("vector", [5], nothing, pooling=Pooling.LAST))
        parts.engine.add(Sequence("answer", [9], SamplingParams(max_tokens=1)))
        parts.engine.add(Sequence("vector too", [7], nothing, pooling=Pooling.MEAN))

    ours, theirs = (parts.engine.step().finished for parts in (graphed, plain))

    assert graphed.recorder.counts()[5] == 1
    assert [done.token_ids for done in ours] == [done.token_ids for done in theirs]
    assert list(ours[0].vector) == pytest.approx(list(theirs[0].vector), abs=1e-5)
    assert list(ours[2].vector) == pytest.approx(list(theirs[2].vector), abs=1e-5)


def test_idle_rows_write_to_no_block_of_a_sequence(make):
    graphed, plain = make(is_graphed=True), make(is_graphed=False)
    for parts in (graphed, plain):
        for sequence in some_sequences(3):
            parts.engine.add(sequence)

        while parts.engine.has_work:
            parts.engine.step()

    for ours, theirs in zip(graphed.cache.layers, plain.cache.layers, strict=True):
        torch.testing.assert_close(ours.keys[:-1], theirs.keys[:-1], equal_nan=True)
        torch.testing.assert_close(ours.values[:-1], theirs.values[:-1], equal_nan=True)
        assert not ours.keys[-1].isnan().all()
        assert theirs.keys[-1].isnan().all()


def test_idle_rows_are_sequences_of_one_token_on_their_own_block():
    buffers = StepBuffers(SIZES, BLOCK_SIZE, CPU, PADDING)

    batch = buffers.fill_idle(2)

    assert batch.slots.tolist() == [NUM_BLOCKS * BLOCK_SIZE] * 2
    assert batch.block_ids[:2].tolist() == [NUM_BLOCKS] * 2
    assert len(batch.block_ids) == MAX_SEQUENCES * SIZES.blocks_per_sequence
    assert batch.context_lengths.tolist() == [1, 1]
    assert batch.row_starts.tolist() == batch.block_starts.tolist() == [0, 1, 2]
    assert batch.sampled_rows.tolist() == [0, 1]


@given(st.integers(1, 300))
def test_every_number_of_rows_has_a_graph_with_few_idle_rows(max_rows):
    padding = Padding(graph_sizes(max_rows), block=0)

    idle = [(padding.rows_for(num_rows) or 0) - num_rows for num_rows in range(1, max_rows + 1)]

    assert min(idle) >= 0
    assert max(idle) <= 7
    assert padding.rows_for(max_rows + 1) is None
