"""Learning: a rounded model is held to the answers of the full one.

GPTQ rounds each layer for itself; what is still wrong adds up. Here all layers' rounding is learned
at once, so that the rounded model foretells the same next tokens on text the full model wrote
(knowledge distillation without data: LLM-QAT, Liu et al. 2023). What is rounded moves on from where
GPTQ left it, by less than the distance of two whole numbers, gradients passing rounding as if it
were not there (SignRound does so layer by layer: Cheng et al. 2023). Scales and norms move too.

Owns the course; engine/student.py has what moves. Knows no files. Computes with a decoder's own
order of operations in bfloat16, as what is learned will be served.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from engine.calibration import batch_of
from engine.kernels.interface import AttentionShape, RaggedBatch
from engine.kernels.reference import ReferenceKernels, attend_one, rotate
from engine.kv_cache import CacheFormat, KvCache, LayerCache
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder, DecoderWeights
from engine.model.rope import RopeTable
from engine.model.stored_linear import Part
from engine.quantised import QuantisedWeight
from engine.student import LearnedLayer, Student

_TEXTS_PER_STEP = 4
_NUM_WARM_UP = 10
# What a parameter whose gradient never changes its sign moves in one step at full pace: a value, as
# a share of the distance of two whole numbers; a scale or norm, as a share of what it was.
_VALUE_PACE = 0.008
_FACTOR_PACE = 0.001


class LearningKernels(ReferenceKernels):
    """Plain kernels that gradients pass through; each text is a whole prompt, none is cached."""

    def __init__(self) -> None:
        super().__init__(torch.bfloat16, is_packed=False)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise a copy: gradients need what the residual was before it is added to."""
        return super().rms_norm(x.clone(), weight, eps)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        batch: RaggedBatch,
        rope: RopeTable,
        cache: LayerCache,  # noqa: ARG002 nothing is stored
        shape: AttentionShape,
    ) -> None:
        """Rotate queries and keys in place."""
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        rotate(heads[:, : shape.num_heads + shape.num_kv_heads], batch.positions, rope)

    def attend(
        self,
        qkv: torch.Tensor,
        batch: RaggedBatch,
        cache: LayerCache,  # noqa: ARG002 keys and values are in the rows
        shape: AttentionShape,
    ) -> torch.Tensor:
        """Let each row attend to the rows of its text up to itself."""
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        parts = [shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]
        attended = []
        for rows in torch.split(heads, batch.row_starts.diff().tolist()):
            queries, keys, values = torch.split(rows, parts, dim=1)
            keys, values = (part.transpose(0, 1).float() for part in (keys, values))
            attended.append(attend_one(queries, keys, values, shape))
        return torch.cat(attended).flatten(1)


def learn_rounding(
    full: DecoderWeights,
    config: ModelConfig,
    rounded: Sequence[Mapping[Part, QuantisedWeight]],
    texts: Sequence[list[int]],
    num_steps: int,
) -> list[LearnedLayer]:
    """Return each layer's rounded weights and norms as they are after so many steps.

    Full has weights as LearningKernels pack them. A step reads a few texts, in an order by chance
    that is the same each time.
    """
    kernels = LearningKernels()
    no_cache = KvCache(config, 0, CacheFormat(2, torch.bfloat16), torch.device("cpu"))
    teacher = Decoder(full, kernels, no_cache)
    student = Student(full, rounded)
    optimiser, schedule = _course(student, num_steps)
    for batch in _batches(texts, num_steps):
        with torch.no_grad():
            wanted = _log_probabilities(teacher, batch)
        with torch.enable_grad():
            found = _log_probabilities(Decoder(student.weights(), kernels, no_cache), batch)
            loss = functional.kl_div(found, wanted, reduction="batchmean", log_target=True)
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
        if len(queue) < _TEXTS_PER_STEP:
            queue += torch.randperm(len(texts), generator=generator).tolist()
        taken, queue = queue[:_TEXTS_PER_STEP], queue[_TEXTS_PER_STEP:]
        batch = batch_of([texts[index] for index in taken])
        yield replace(batch, sampled_rows=torch.arange(len(batch.token_ids)))


def _log_probabilities(decoder: Decoder, batch: RaggedBatch) -> torch.Tensor:
    return decoder.scores(decoder.forward(batch)).log_softmax(-1)  # [T, V]
