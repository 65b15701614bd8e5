"""TritonKernels: the operations on a GPU, each a kernel of this package or a product of cuBLAS.

Owns their order of execution in one respect: what a layer adds to the residual waits for the norm
that comes next and is added in the same pass. Nothing outside reads a residual but through these
operations. On a CPU the kernels run in Triton's
interpreter, for tests; engine/kernels/choice.py decides where they run.
"""

import torch
from torch.nn import functional

from engine.kernels.experts import add_experts
from engine.kernels.interface import AttentionShape, Experts, Linear, Parts, RaggedBatch
from engine.kernels.triton.attention import attend
from engine.kernels.triton.head import pick_best, score_rows
from engine.kernels.triton.norms import norm_add, norm_parts, norm_rows, norm_sampled_rows
from engine.kernels.triton.quantised import multiply_int4, multiply_int8
from engine.kernels.triton.rotation import rotate_and_store
from engine.kernels.triton.rows import embed_rows, gate_rows
from engine.kernels.triton.tiles import is_interpreted
from engine.kv_cache import CacheLayout, LayerCache
from engine.model.config import Activation
from engine.model.rope import RopeTable
from engine.quantised import QuantisedWeight


class TritonKernels:
    """Computes at once, on the device its tensors are on."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.name = "triton, interpreted" if is_interpreted() else "triton"
        self.cache_layout = CacheLayout.ROWS
        self.is_recordable = not is_interpreted()
        self.shares_tables = True
        self._dtype = dtype
        # The product that is still to be added to a residual, and that residual.
        self._owed: tuple[torch.Tensor, torch.Tensor] | None = None

    def pack(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        """Keep a weight as it is, with a bias of its type."""
        num_out, num_in = weight.shape
        bias = None if bias is None else bias.to(self._dtype)
        return Linear(weight.contiguous(), bias, num_in, num_out, activation)

    def pack_int8(
        self,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        activation: Activation | None,
    ) -> Linear:
        """Keep a weight of signed bytes and its scales as they are."""
        num_out, num_in = weight.shape
        return Linear(weight.contiguous(), bias, num_in, num_out, activation, scales.contiguous())

    def pack_int4(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        """Keep a weight of half bytes and its scales as they are."""
        return Linear(
            weight.values.contiguous(),
            bias,
            weight.num_in,
            len(weight.values),
            activation,
            weight.scales.contiguous(),
            weight.group_size,
        )

    def pack_table(self, table: torch.Tensor) -> Linear:
        """Keep a table as it is."""
        return self.pack(table, None, None)

    def embed(self, table: Linear, batch: RaggedBatch, scale: float) -> torch.Tensor:
        """Look up the rows' tokens; a step that failed owes this one nothing."""
        self._owed = None
        out = torch.empty(
            len(batch.token_ids), table.num_in, dtype=torch.float32, device=table.data.device
        )
        embed_rows(table.data, batch, scale, out)
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise rows, after adding what is owed to them."""
        out = torch.empty_like(x, dtype=self._dtype)
        norm_rows(x, self._take_owed(x), weight, eps, out)
        return out

    def rms_norm_parts(
        self, x: torch.Tensor, parts: Parts, weight: torch.Tensor, eps: float
    ) -> None:
        """Normalise parts of rows where they are, each by itself."""
        norm_parts(x, parts, weight, eps)

    def rms_norm_add(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor
    ) -> None:
        """Normalise rows and add them to the residual."""
        self._settle(residual)
        norm_add(x, weight, eps, residual)

    def narrow(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 rows in the model's type."""
        self._settle(x)
        return x.to(self._dtype)

    def rms_norm_sampled(
        self, x: torch.Tensor, batch: RaggedBatch, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Normalise the sampled rows alone."""
        self._settle(x)
        out = torch.empty(len(batch.sampled_rows), x.shape[1], dtype=self._dtype, device=x.device)
        norm_sampled_rows(x, batch, weight, eps, out)
        return out

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        if weight.group_size is not None:
            return multiply_int4(x, weight)
        if weight.scales is not None:
            return multiply_int8(x, weight)
        return functional.linear(x, weight.data, weight.bias)

    def linear_add(self, x: torch.Tensor, weight: Linear, residual: torch.Tensor) -> None:
        """Add x @ weight.T to the residual, at the next norm."""
        self._settle(residual)
        self._owed = residual, self.linear(x, weight)

    def linear_gated(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return activation(gate) * up."""
        gate_up = self.linear(x, weight)
        out = torch.empty(len(x), weight.num_out // 2, dtype=self._dtype, device=x.device)
        gate_rows(gate_up, weight.activation, out)
        return out

    def experts_add(self, x: torch.Tensor, experts: Experts, residual: torch.Tensor) -> None:
        """Add to the residual what each row's experts make of it."""
        self._settle(residual)
        add_experts(self, x, experts, residual)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        batch: RaggedBatch,
        rope: RopeTable,
        cache: LayerCache,
        shape: AttentionShape,
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the cache."""
        rotate_and_store(qkv, batch, rope, cache, shape)

    def attend(
        self, qkv: torch.Tensor, batch: RaggedBatch, cache: LayerCache, shape: AttentionShape
    ) -> torch.Tensor:
        """Let each row's queries attend to its sequence's cached tokens up to itself."""
        return attend(qkv, batch, cache, shape)

    def scores(self, x: torch.Tensor, weight: Linear, softcap: float | None) -> torch.Tensor:
        """Score the vocabulary for sampled rows."""
        return score_rows(x, weight, softcap)

    def best(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return the token with the highest score for each sampled row."""
        return pick_best(x, weight)

    def _take_owed(self, residual: torch.Tensor) -> torch.Tensor | None:
        """Return what is to be added to a residual, and owe it no longer."""
        if self._owed is None:
            return None
        owed_to, product = self._owed
        assert owed_to is residual, "one residual at a time"
        self._owed = None
        return product

    def _settle(self, residual: torch.Tensor) -> None:
        """Add what is owed to a residual now."""
        product = self._take_owed(residual)
        if product is not None:
            residual += product
