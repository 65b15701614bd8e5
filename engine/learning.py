"""Learning: a rounded model is held to the answers of the full one.

GPTQ rounds each layer for itself; what is still wrong adds up. Here all layers' rounding is learned
at once, so that the rounded model foretells the same next tokens on text the full model wrote
(knowledge distillation without data: LLM-QAT, Liu et al. 2023). What is rounded moves on from where
GPTQ left it, by less than the distance of two whole numbers, gradients passing rounding as if it
were not there (SignRound does so layer by layer: Cheng et al. 2023). Scales and norms move too.

Owns the course; engine/student.py has what moves. Knows no files. Computes with a decoder's own
order of operations in bfloat16, as what is learned will be served.
"""

from collections.abc import Iterator, Sequence

import torch

from engine.distance import distance, log_probabilities, no_cache, whole_texts
from engine.kernels.interface import RaggedBatch
from engine.layer_tensors import RoundedLayer
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder, DecoderWeights
from engine.student import Student
from engine.text_kernels import TextKernels

TEXTS_PER_STEP = 4
_NUM_WARM_UP = 10
# What a parameter whose gradient never changes its sign moves in one step at full pace: a value, as
# a share of the distance of two whole numbers; a scale or norm, as a share of what it was.
_VALUE_PACE = 0.008
_FACTOR_PACE = 0.001


def learn_rounding(
    full: DecoderWeights,
    config: ModelConfig,
    rounded: Sequence[RoundedLayer],
    texts: Sequence[list[int]],
    num_steps: int,
) -> list[RoundedLayer]:
    """Return all layers with rounded weights and norms as they are after so many steps.

    Full has weights in bfloat16, as TextKernels pack them. A step reads a few texts, in an order by
    chance that is the same each time.
    """
    kernels, cache = TextKernels(torch.bfloat16), no_cache(config)
    teacher = Decoder(full, kernels, cache)
    student = Student(full, rounded)
    optimiser, schedule = _course(student, num_steps)
    for batch in _batches(texts, num_steps):
        with torch.no_grad():
            wanted = log_probabilities(teacher, batch)
        with torch.enable_grad():
            found = log_probabilities(Decoder(student.weights(), kernels, cache), batch)
            loss = distance(found, wanted)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch
        optimiser.step()
        schedule.step()
    return student.layers()


def _course(
    student: Student, num_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Warm up, then slow down evenly until nothing moves."""
    optimiser = torch.optim.Adam(
        [
            {"params": student.values, "lr": _VALUE_PACE},
            {"params": student.factors, "lr": _FACTOR_PACE},
        ],
        betas=(0.9, 0.95),
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1.0, (step + 1) / _NUM_WARM_UP) * (1 - step / num_steps)
    )
    return optimiser, schedule


def _batches(texts: Sequence[list[int]], num_steps: int) -> Iterator[RaggedBatch]:
    """Go through all texts again and again, each time in another order."""
    generator = torch.Generator().manual_seed(0)
    queue: list[int] = []
    for _ in range(num_steps):
        if len(queue) < TEXTS_PER_STEP:
            queue += torch.randperm(len(texts), generator=generator).tolist()
        taken, queue = queue[:TEXTS_PER_STEP], queue[TEXTS_PER_STEP:]
        yield whole_texts([texts[index] for index in taken])
