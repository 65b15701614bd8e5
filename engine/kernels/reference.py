"""ReferenceKernels: what each operation means, in plain PyTorch, on any device.

Written to be read and to be right; sums and softmax are float32. Must stay free of shortcuts, since
every fast implementation is tested against it. Linear layers alone may use oneDNN's packed product,
three times as fast on a CPU: without a compiler, this file is what runs. Its operators are private
to torch, so torch's own product stays as fallback.
"""

import torch
from torch.nn import functional

from engine.kernels.experts import add_experts
from engine.kernels.interface import AttentionShape, Experts, Linear, Parts, RaggedBatch
from engine.kv_cache import CacheLayout, LayerCache
from engine.model.config import Activation, Scheme
from engine.model.rope import RopeTable
from engine.quantised import QuantisedWeight

# oneDNN picks the layout for about this many rows; any number works with it.
_TYPICAL_ROWS = 32


class ReferenceKernels:
    """The plain implementation of Kernels, which computes at once."""

    def __init__(self, dtype: torch.dtype, *, is_packed: bool) -> None:
        self.name = "reference with oneDNN" if is_packed else "reference"
        self.cache_layout = CacheLayout.WORDS  # any would do
        self.is_recordable = False
        self.shares_tables = not is_packed  # nobody but oneDNN can read its layout
        self._dtype = dtype
        self._is_packed = is_packed

    def pack(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        """Lay a weight out for oneDNN, or leave it as it is."""
        num_out, num_in = weight.shape
        if self._is_packed:
            pack = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001 there is no public one
            weight = pack(weight, _TYPICAL_ROWS)
        return Linear(weight, bias, num_in, num_out, activation)

    def pack_int8(
        self,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        activation: Activation | None,
    ) -> Linear:
        """Keep a weight of signed bytes and its scales as they are."""
        num_out, num_in = weight.shape
        return Linear(weight, bias, num_in, num_out, activation, scales)

    def pack_int4(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        """Keep a weight of half bytes and its scales as they are."""
        num_out = len(weight.values)
        return Linear(
            weight.values,
            bias,
            weight.num_in,
            num_out,
            activation,
            weight.scales,
            weight.group_size,
        )

    def pack_table(self, table: torch.Tensor) -> Linear:
        """Keep a copy of a table, so that the file it is read from can be closed."""
        num_tokens, width = table.shape
        return Linear(table.clone(), None, width, num_tokens, None)

    def embed(self, table: Linear, batch: RaggedBatch, scale: float) -> torch.Tensor:
        """Look up the rows' tokens."""
        return table.data[batch.token_ids].float() * scale

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root mean square normalisation (Zhang and Sennrich 2019)."""
        return _normalise(x, weight, eps).to(self._dtype)

    def rms_norm_parts(
        self, x: torch.Tensor, parts: Parts, weight: torch.Tensor, eps: float
    ) -> None:
        """Normalise parts of rows where they are, each by itself."""
        width = len(weight)
        columns = x[:, parts.start : parts.start + parts.count * width]
        normed = _normalise(columns.reshape(len(x), parts.count, width).float(), weight, eps)
        columns.copy_(normed.flatten(1))

    def rms_norm_add(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor
    ) -> None:
        """Normalise rows and add them to the residual."""
        residual += _normalise(x.float(), weight, eps)

    def narrow(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 rows in the model's type."""
        return x.to(self._dtype)

    def rms_norm_sampled(
        self, x: torch.Tensor, batch: RaggedBatch, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Normalise the sampled rows alone."""
        return self.rms_norm(x[batch.sampled_rows], weight, eps)

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        bias = None if weight.bias is None else weight.bias.to(self._dtype)
        if weight.group_size is not None:
            return functional.linear(x, _dequantise_int4(weight).to(self._dtype), bias)
        if weight.scales is not None:
            return _multiply_int8(x, weight, weight.scales)
        if not self._is_packed:
            return functional.linear(x, weight.data, bias)
        multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 there is no public one
        product: torch.Tensor = multiply(x, weight.data, bias, "none", [], "")
        return product

    def linear_add(self, x: torch.Tensor, weight: Linear, residual: torch.Tensor) -> None:
        """Add x @ weight.T to the residual."""
        residual += self.linear(x, weight)

    def linear_gated(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """GLU variants (Shazeer 2020)."""
        gate, up = self.linear(x, weight).chunk(2, dim=-1)
        if weight.activation is Activation.SILU:
            return functional.silu(gate) * up
        return functional.gelu(gate, approximate="tanh") * up

    def experts_add(self, x: torch.Tensor, experts: Experts, residual: torch.Tensor) -> None:
        """Add to the residual what each row's experts make of it."""
        add_experts(self, x, experts, residual)

    def rotate_and_store(
        self,
        qkv: torch.Tensor,  # [T, (H + 2 G) D]
        batch: RaggedBatch,
        rope: RopeTable,
        cache: LayerCache,
        shape: AttentionShape,
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the cache."""
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)  # [T, H + 2 G, D]
        num_turned = shape.num_heads + shape.num_kv_heads
        rotate(heads[:, :num_turned], batch.positions, rope)
        keys = heads[:, shape.num_heads : num_turned]  # [T, G, D]
        values = heads[:, num_turned:]  # [T, G, D]
        blocks = batch.slots // cache.block_size  # [T]
        places = batch.slots % cache.block_size  # [T]
        if cache.scales is not None:
            keys, cache.scales[blocks, :, 0, places] = _to_bytes(keys)
            values, cache.scales[blocks, :, 1, places] = _to_bytes(values)
        packed = keys.reshape(*keys.shape[:2], -1, cache.keys.shape[-1])  # [T, G, D/P, P]
        cache.keys[blocks, :, :, places] = packed
        packing = cache.values.shape[-1]
        cache.values[blocks, :, places // packing, :, places % packing] = values

    def attend(
        self, qkv: torch.Tensor, batch: RaggedBatch, cache: LayerCache, shape: AttentionShape
    ) -> torch.Tensor:
        """Let each row's queries attend to its sequence's cached tokens up to itself."""
        heads = qkv.view(qkv.shape[0], -1, shape.head_dim)
        queries = heads[:, : shape.num_heads]  # [T, H, D]
        out = torch.empty_like(queries)
        row_starts = batch.row_starts.tolist()
        block_starts = batch.block_starts.tolist()
        for index, length in enumerate(batch.context_lengths.tolist()):
            rows = slice(row_starts[index], row_starts[index + 1])
            blocks = batch.block_ids[block_starts[index] : block_starts[index + 1]]
            keys, values = _gather(cache, blocks, length)  # [G, length, D]
            out[rows] = attend_one(queries[rows], keys, values, shape)
        return out.flatten(1)  # [T, H D]

    def scores(self, x: torch.Tensor, weight: Linear, softcap: float | None) -> torch.Tensor:
        """Score the vocabulary for sampled rows."""
        scores = self.linear(x, weight).float()
        return scores if softcap is None else softcap * torch.tanh(scores / softcap)

    def best(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return the token with the highest score for each sampled row."""
        return self.linear(x, weight).argmax(-1).int()


def _dequantise_int4(weight: Linear) -> torch.Tensor:
    assert weight.scales is not None
    assert weight.group_size is not None
    quantised = QuantisedWeight(Scheme.INT4, weight.data, weight.scales, weight.group_size)
    return quantised.dequantise()


def _multiply_int8(x: torch.Tensor, weight: Linear, scales: torch.Tensor) -> torch.Tensor:
    """Multiply in whole numbers: rows by their own scales, columns by the weight's."""
    rows, row_scales = _to_bytes(x)
    exact = rows.double() @ weight.data.double().T  # sums of bytes exceed float32's integers
    product = exact.float() * (row_scales[:, None] * scales)
    if weight.bias is not None:
        product += weight.bias
    return product.to(x.dtype)


def _to_bytes(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round rows so that the largest value of each is 127; return them with their scales."""
    largest = rows.float().abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > 0, torch.full_like(largest, 127) / largest, 0.0)
    return (rows.float() * inverse).round().to(torch.int8), largest.squeeze(-1) / 127


def can_pack(device: torch.device) -> bool:
    """Tell whether oneDNN's packed product exists here; being private, it may not."""
    has_onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call] # torch
    return device.type == "cpu" and has_onednn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _normalise(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(heads: torch.Tensor, positions: torch.Tensor, rope: RopeTable) -> None:
    cosines = rope.cosines[positions][:, None]  # [T, 1, rotated / 2]
    sines = rope.sines[positions][:, None]
    half = cosines.shape[-1]
    first = heads[..., :half].float()
    second = heads[..., half : 2 * half].float()
    turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), -1)
    heads[..., : 2 * half] = turned


def _gather(
    cache: LayerCache, blocks: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Collect a sequence's keys and values, float32.

    Only the slots it has filled, the rest may hold anything.
    """
    keys = cache.keys[blocks].permute(1, 0, 3, 2, 4)  # [G, n, B, D/P, P]
    values = cache.values[blocks].permute(1, 0, 2, 4, 3)  # [G, n, B/P, P, D]
    keys, values = keys.flatten(3).flatten(1, 2)[:, :length], values.flatten(1, 3)[:, :length]
    if cache.scales is None:
        return keys.float(), values.float()
    scales = cache.scales[blocks].permute(2, 1, 0, 3).flatten(2)[:, :, :length, None]
    return keys * scales[0], values * scales[1]


def attend_one(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    num_rows = queries.shape[0]
    length = keys.shape[1]
    grouped = queries.float().view(num_rows, shape.num_kv_heads, -1, shape.head_dim)
    scores = torch.einsum("rghd,gld->ghrl", grouped, keys) * shape.scale
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    row_positions = torch.arange(length - num_rows, length, device=keys.device)[:, None]
    distance = row_positions - torch.arange(length, device=keys.device)  # [rows, length]
    hidden = distance < 0
    if shape.window is not None:
        hidden |= distance >= shape.window
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    attended = torch.einsum("ghrl,gld->rghd", weights, values)
    return attended.flatten(1, 2).to(queries.dtype)  # [rows, H, D]
