"""Vectors of every family, and of the demonstration model, are transformers' pooled states."""

from dataclasses import replace

import pytest
import torch
import transformers

from engine.config import ComputeType, EngineConfig
from engine.loading import load_engine
from engine.sequence import Pooling, SamplingParams, Sequence
from engine.tokenizer import Tokenizer
from tests.support.family_models import FAMILIES, write_family_model

CONFIG = EngineConfig(
    dtype=ComputeType.FLOAT32, num_blocks=128, max_sequences=8, max_step_tokens=16, num_threads=1
)
TEXTS = (
    "The capital of France is Paris.",
    "def add(a, b):\n    return a + b",
    "x",
    "Once upon a time there was a miller whose mill ground prompts, day and night. " * 4,
)
# Our rotations of phi3-long go by the longest context that is served, theirs by the prompt.
NAMES = [name for name in FAMILIES if name != "phi3-long"]

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def some_ids(length):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(256, (length,), generator=generator).tolist()


@torch.inference_mode()
def their_states(folder, prompts):
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).base_model
    return [network(torch.tensor([ids]), use_cache=False).last_hidden_state[0] for ids in prompts]


def pooled_by(states, pooling):
    pooled = [one.mean(0) if pooling is Pooling.MEAN else one[-1] for one in states]
    return torch.stack([vector / vector.norm() for vector in pooled])


def vectors_of(engine, prompts, pooling):
    nothing = SamplingParams(max_tokens=0)
    for index, prompt_ids in enumerate(prompts):
        engine.add(Sequence(str(index), prompt_ids, nothing, pooling=pooling))
    vectors = {}
    while engine.has_work:
        for done in engine.step().finished:
            vectors[done.sequence_id] = torch.tensor(done.vector)
        engine.check_integrity()
    return torch.stack([vectors[str(index)] for index in range(len(prompts))])


@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_every_family_are_transformers(tmp_path, name):
    folder = write_family_model(tmp_path / name, name)
    prompts = [some_ids(length) for length in (1, 13, 40)]
    engine = load_engine(folder, CONFIG)

    ours = {pooling: vectors_of(engine, prompts, pooling) for pooling in Pooling}

    states = their_states(folder, prompts)
    theirs = {pooling: pooled_by(states, pooling) for pooling in Pooling}
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.real_model
@pytest.mark.timeout(120)
def test_vectors_of_the_demonstration_model_are_transformers(model_folder):
    tokenizer = Tokenizer.load(model_folder)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    engine = load_engine(model_folder, replace(CONFIG, max_step_tokens=48))

    ours = {pooling: vectors_of(engine, prompts, pooling) for pooling in Pooling}

    states = their_states(model_folder, prompts)
    theirs = {pooling: pooled_by(states, pooling) for pooling in Pooling}
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)
