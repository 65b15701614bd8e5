"""QuantisedWeight: a weight matrix as whole numbers, and what one of them is worth.

Owns both schemes and how they lie in safetensors files, in the place of a linear layer's
`name.weight`. int8: `name.weight_int8` is I8 [out, in], and products also turn each row of
activations into bytes. int4: `name.weight_int4` is U8 [out, in / 2], two numbers to a byte, the
even input in the low half, each stored as 8 more than it is; activations stay as they are. Both:
`name.weight_scales` [out, groups], F32 for int8 and BF16 for int4; a group is `group_size`
neighbouring inputs, the last may be shorter, and int8 has one of all inputs. Embedding, head, norms
and biases stay as they were: norms and biases are small, and every answer goes through the
embedding and the head at each token.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.model.config import Scheme

SUFFIXES = {Scheme.INT8: "weight_int8", Scheme.INT4: "weight_int4"}
SCALES_SUFFIX = "weight_scales"


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A matrix of small whole numbers; scales have one column, or one for each group of inputs."""

    scheme: Scheme
    values: torch.Tensor  # [out, in] int8, or [out, in / 2] uint8
    scales: torch.Tensor  # [out, groups] float
    group_size: int  # for int8, all inputs

    @property
    def num_in(self) -> int:
        """Count the inputs."""
        return self.values.shape[1] * (2 if self.scheme is Scheme.INT4 else 1)

    def dequantise(self) -> torch.Tensor:
        """Return what the numbers stand for, [out, in] float32."""
        whole = unpack_int4(self.values) if self.scheme is Scheme.INT4 else self.values
        return whole.float() * spread_scales(self.scales, self.group_size, self.num_in)


def spread_scales(scales: torch.Tensor, group_size: int, num_in: int) -> torch.Tensor:
    """Repeat each group's scale for its inputs, [out, in] float32."""
    return scales.float().repeat_interleave(group_size, dim=1)[:, :num_in]


def pack_int4(whole: torch.Tensor) -> torch.Tensor:
    """Put numbers from -8 to 7, [out, in], two to a byte."""
    assert whole.shape[1] % 2 == 0, "two inputs share a byte"
    raised = (whole + 8).to(torch.uint8)
    return raised[:, 0::2] | raised[:, 1::2] << 4


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Return the numbers from -8 to 7, [out, in] int8."""
    halves = torch.stack((packed & 15, packed >> 4), dim=-1)  # [out, in / 2, 2]
    return halves.flatten(1).to(torch.int8) - 8


def grouped(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return a matrix by groups of inputs, [out, groups, group size], filled up with zeros."""
    num_missing = -weight.shape[1] % group_size
    return functional.pad(weight, (0, num_missing)).view(len(weight), -1, group_size)
