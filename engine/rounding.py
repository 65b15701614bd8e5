"""Rounding a weight matrix to few bits, so that its products change least.

int8: each output's largest value becomes 127. int4: GPTQ (Frantar et al. 2022), by columns from the
one whose input is strongest to the weakest; the error of each is made up for by those not yet
rounded. Which inputs there are is told by typical rows of them. Owns no files and no model.
"""

import torch

from engine.model.config import Scheme
from engine.quantised import QuantisedWeight, grouped, pack_int4, spread_scales

_LOWEST, _HIGHEST = -8, 7
_DAMPING = 0.01  # of the mean moment, added to each: GPTQ, section 3.3, step 3
_COLUMNS_AT_ONCE = 64
# Scales tried for each group, as shares of what would reach its largest value.
_SHARES = tuple(1 - step / 32 for step in range(16))


def round_int8(weight: torch.Tensor) -> QuantisedWeight:
    """Round each output by its own largest value."""
    scales = weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
    values = (weight / scales).round().to(torch.int8)
    return QuantisedWeight(Scheme.INT8, values, scales, weight.shape[1])


def round_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return what rows of activations become as bytes, each by its own largest value."""
    scales = rows.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
    return (rows / scales).round() * scales


def round_int4(weight: torch.Tensor, rows: torch.Tensor, group_size: int) -> QuantisedWeight:
    """Round in groups of inputs, given typical rows of inputs, [T, in]."""
    moments = rows.T @ rows  # [in, in]
    strength = moments.diagonal()
    scales = _choose_scales(weight, strength, group_size)  # [out, groups] bfloat16
    steps = spread_scales(scales, group_size, weight.shape[1])  # [out, in]
    order = strength.argsort(descending=True)
    factor = _inverse_factor(moments[order][:, order])
    whole = _round_in_order(weight[:, order], steps[:, order], factor)
    values = pack_int4(whole[:, order.argsort()])
    return QuantisedWeight(Scheme.INT4, values, scales, group_size)


def _choose_scales(weight: torch.Tensor, strength: torch.Tensor, group_size: int) -> torch.Tensor:
    """Choose each group's scale by the error it makes, weighted by how strong the inputs are.

    A scale may be negative: then the largest value takes the one number more that there is below
    zero.
    """
    groups = grouped(weight, group_size)  # [out, groups, group size]
    importance = grouped(strength[None], group_size)
    places = groups.abs().argmax(-1, keepdim=True)
    largest = groups.gather(-1, places)
    largest = torch.where(largest == 0, 1e-6, largest)
    best_errors = torch.full_like(largest, float("inf"))
    best_scales = torch.zeros_like(largest)
    for share in _SHARES:
        for full in (largest / _LOWEST, largest.abs() / _HIGHEST):
            scales = (full * share).bfloat16().float()
            errors = _round(groups, scales) * scales - groups
            weighted = (errors.square() * importance).sum(-1, keepdim=True)
            is_better = weighted < best_errors
            best_errors = torch.where(is_better, weighted, best_errors)
            best_scales = torch.where(is_better, scales, best_scales)
    return best_scales.squeeze(-1).bfloat16()


def _inverse_factor(moments: torch.Tensor) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse (GPTQ, section 3.3, step 3)."""
    damped = moments.double()
    damped += torch.eye(len(moments), dtype=damped.dtype) * _DAMPING * damped.diagonal().mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
    factor: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()


def _round_in_order(
    weight: torch.Tensor, steps: torch.Tensor, factor: torch.Tensor
) -> torch.Tensor:
    """Round column by column; spread each one's error over the columns still to come."""
    left = weight.clone()
    whole = torch.empty_like(left)
    num_columns = left.shape[1]
    for start in range(0, num_columns, _COLUMNS_AT_ONCE):
        end = min(start + _COLUMNS_AT_ONCE, num_columns)
        errors = torch.empty(len(left), end - start)
        for column in range(start, end):
            whole[:, column] = _round(left[:, column], steps[:, column])
            error = left[:, column] - whole[:, column] * steps[:, column]
            error /= factor[column, column]
            left[:, column + 1 : end] -= error[:, None] * factor[column, column + 1 : end]
            errors[:, column - start] = error
        left[:, end:] -= errors @ factor[start:end, end:]
    return whole


def _round(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (values / scales).round().clamp(_LOWEST, _HIGHEST)
