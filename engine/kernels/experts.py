"""Experts for kernels that compute at once: rows are grouped by expert, each group is one product.

Owns the choice and the grouping. No row is looked at by Python; the experts that were chosen are
gone through once. How many rows each has is read back from the device, once for each layer.
"""

import torch

from engine.kernels.interface import Experts, Kernels


def add_experts(
    kernels: Kernels, x: torch.Tensor, experts: Experts, residual: torch.Tensor
) -> None:
    """Add to the residual what each row's experts make of it, times their shares."""
    shares, chosen = _choose(kernels.scores(x, experts.router, None), experts)  # [T, K] each
    by_expert = chosen.flatten().argsort(stable=True)  # [T K]
    rows = by_expert // chosen.shape[1]
    shares = shares.flatten()[by_expert, None]
    sizes = chosen.flatten().bincount(minlength=len(experts.experts)).tolist()
    groups = (torch.split_with_sizes(values, sizes) for values in (rows, shares))
    for expert, its_rows, its_shares in zip(experts.experts, *groups, strict=True):
        if len(its_rows):
            gated = kernels.linear_gated(x[its_rows], expert.gate_up)
            residual[its_rows] += kernels.linear(gated, expert.down) * its_shares


def _choose(scores: torch.Tensor, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each row the shares and the numbers of its experts."""
    num_routed = len(experts.experts) - experts.has_shared
    shares, chosen = scores[:, :num_routed].softmax(-1).topk(experts.num_chosen)
    if experts.is_renormalised:
        shares = shares / shares.sum(-1, keepdim=True)
    if experts.has_shared:
        shares = torch.cat((shares, scores[:, num_routed:].sigmoid()), -1)
        chosen = torch.nn.functional.pad(chosen, (0, 1), value=num_routed)
    return shares, chosen
