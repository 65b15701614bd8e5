"""own_text: text that a model writes by itself, to be calibrated on.

Needs no data set and no language: what a model writes freely is what its layers typically see
(LLM-QAT, Liu et al. 2023, section 2.1). Equal for equal seeds.
"""

import random
from pathlib import Path

from engine.config import EngineConfig
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence


def own_text(folder: Path, num_texts: int, num_tokens: int) -> list[list[int]]:
    """Let a model go on from one random token in each text; return the token ids."""
    config = EngineConfig(
        max_sequences=num_texts, max_step_tokens=num_texts, max_context=num_tokens
    )
    engine = load_engine(folder, config)
    starts = random.Random(0)  # noqa: S311 equal folders get equal texts
    texts: dict[str, list[int]] = {}
    for index in range(num_texts):
        first = starts.randrange(engine.limits.vocab_size)
        sampling = SamplingParams(
            max_tokens=num_tokens - 1, temperature=1.0, top_p=0.95, seed=index, ignore_eos=True
        )
        texts[str(index)] = [first]
        engine.add(Sequence(str(index), [first], sampling))
    while engine.has_work:
        for done in engine.step().finished:
            texts[done.sequence_id] += done.token_ids
    return list(texts.values())
