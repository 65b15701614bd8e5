"""ModelRunner: a plan becomes a batch, the batch goes through the model.

Owns nothing but the order of the two; it changes no sequence.
"""

from typing import Protocol

import torch

from engine.errors import DeviceMemoryError
from engine.kernels.interface import RaggedBatch
from engine.plan import StepPlan
from engine.step_buffers import StepBuffers


class Model(Protocol):
    """A decoder, computed at once or as recorded."""

    def forward(self, batch: RaggedBatch) -> torch.Tensor: ...


class ModelRunner:
    """One model on one device."""

    def __init__(self, model: Model, buffers: StepBuffers) -> None:
        self._model = model
        self._buffers = buffers

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> torch.Tensor:
        """Compute a plan; return the normalised last hidden states that it asks for, [R, M]."""
        try:
            return self._model.forward(self._buffers.fill(plan))
        except torch.OutOfMemoryError as error:
            raise DeviceMemoryError from error
