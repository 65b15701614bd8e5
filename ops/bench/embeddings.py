"""How well a model's embeddings tell sentences apart, for each pooling, and what embedding costs:
`python -m ops.bench.embeddings FOLDER`.

Owns the sentences: twelve, each with a paraphrase and with one about something else.
"""

import time
from collections.abc import Sequence as Many
from pathlib import Path

import click
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.loading import load_engine
from engine.sequence import Pooling, SamplingParams, Sequence
from engine.tokenizer import Tokenizer

# A sentence, a paraphrase, another subject.
_TRIPLES = (
    ("A cat sleeps on the sofa.", "A kitten naps on the couch.", "Interest rates rose again."),
    (
        "How do I reset my password?",
        "I forgot my login and need a new password.",
        "Where can I park near the station?",
    ),
    (
        "The train to Berlin is late.",
        "The Berlin train has been delayed.",
        "Mix flour, eggs and milk to a batter.",
    ),
    (
        "She plays the violin beautifully.",
        "Her performance on the violin is lovely.",
        "The server ran out of memory.",
    ),
    (
        "Water boils at one hundred degrees.",
        "The boiling point of water is 100 degrees.",
        "He scored two goals on Sunday.",
    ),
    (
        "My order arrived broken.",
        "The package I received was damaged.",
        "The museum opens at nine.",
    ),
    (
        "The company reported record profits.",
        "Earnings of the firm were higher than ever.",
        "The dog chased the ball into the lake.",
    ),
    (
        "It will rain tomorrow.",
        "Wet weather is expected the next day.",
        "The committee approved the budget.",
    ),
    (
        "He bought a used car.",
        "He purchased a second-hand automobile.",
        "The recipe needs more salt.",
    ),
    ("The film was boring.", "I found the movie dull.", "The bridge is closed for repairs."),
    (
        "Please cancel my subscription.",
        "I want to end my membership.",
        "The mountain is covered with snow.",
    ),
    (
        "The doctor prescribed antibiotics.",
        "The physician gave her medicine against bacteria.",
        "The choir sang in the old church.",
    ),
)
_LONG = range(7, 7 + 511)
_NOTHING_SAMPLED = SamplingParams(max_tokens=0)


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
def main(folder: Path) -> None:
    """Compare poolings on sentences with and without their full stops, then embed a long prompt."""
    engine = load_engine(folder, EngineConfig(num_blocks=512, num_threads=1))
    tokenizer = Tokenizer.load(folder)
    whole = [text for triple in _TRIPLES for text in triple]
    for texts, name in ((whole, "whole"), ([text.rstrip(".?") for text in whole], "cut")):
        prompts = [tokenizer.encode(text) for text in texts]
        for pooling in Pooling:
            click.echo(f"{name:5}  {pooling:4}  {_judged(_vectors(engine, prompts, pooling))}")
    for first_id, pooling in enumerate(Pooling, start=1):
        # No prompt finds a beginning of the one before in the cache.
        prompt = [first_id * token_id % engine.limits.vocab_size for token_id in _LONG]
        started = time.process_time()
        _vectors(engine, [prompt], pooling)
        spent_s = time.process_time() - started
        click.echo(f"{len(_LONG)} tokens  {pooling:4}  {spent_s:.3f} s of CPU")


def _vectors(
    engine: Engine[torch.Tensor], prompts: Many[list[int]], pooling: Pooling
) -> torch.Tensor:
    for index, prompt_ids in enumerate(prompts):
        engine.add(Sequence(str(index), prompt_ids, _NOTHING_SAMPLED, pooling=pooling))
    found: dict[str, torch.Tensor] = {}
    while engine.has_work:
        for done in engine.step().finished:
            found[done.sequence_id] = torch.tensor(done.vector)
    return torch.stack([found[str(index)] for index in range(len(prompts))])  # [S, M]


def _judged(vectors: torch.Tensor) -> str:
    """Count the sentences whose paraphrase is nearer than the other subject, and than all."""
    cosines = vectors @ vectors.T  # [S, S]
    sentences = range(0, len(vectors), 3)
    num_nearer = sum(bool(cosines[one, one + 1] > cosines[one, one + 2]) for one in sentences)
    cosines.fill_diagonal_(-1.0)
    num_nearest = sum(int(cosines[one].argmax()) == one + 1 for one in sentences)
    return f"nearer {num_nearer}, nearest of all {num_nearest}, of {len(sentences)}"


if __name__ == "__main__":
    main()
