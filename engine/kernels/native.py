"""NativeKernels: the operations in C++ on a CPU, recorded once and run as one call per step.

Owns the buffers between operations: one for each operation and width, as large as the largest step.
NativeModel is the decoder recorded this way. Results do not depend on the rows beside: every sum
has a fixed order, whatever the batch.
"""

import ctypes
import weakref

import torch

from engine.kernels.interface import AttentionShape, Experts, Linear, Parts, RaggedBatch
from engine.kernels.native_library import PackedExpert, PackedWeight, Variant
from engine.kv_cache import CacheLayout, LayerCache
from engine.model.config import Activation
from engine.model.decoder import Decoder
from engine.model.rope import RopeTable
from engine.plan import StepSeconds
from engine.quantised import QuantisedWeight
from engine.step_buffers import StepBuffers, StepSizes

_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1}
_LARGEST_HEAD = 256
_INT4_PER_WORD = 8
_INT8_PER_WORD = 4
_INT8_ZERO = 128  # kZero in vector.h
_SPAN = 128  # kSpan in attention.h: blocks have to divide it


class NativeKernels:
    """Records operations; nothing is computed before `run`."""

    def __init__(
        self,
        variant: Variant,
        library: ctypes.CDLL,
        dtype: torch.dtype,
        sizes: StepSizes,
        num_threads: int,
    ) -> None:
        self.name = f"native {variant.name}"
        self.cache_layout = CacheLayout.WORDS
        self.is_recordable = False
        self.shares_tables = True
        self._library = library
        self._dtype = dtype
        self._values_per_word = 4 // dtype.itemsize
        self._sizes = sizes
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}
        library.pm_return_freed_memory()
        self._arena = _Arena(library)
        self._kept: list[object] = []  # whatever the program holds addresses of
        self._program = library.pm_create(_ELEMENTS[dtype], num_threads)
        self._close = weakref.finalize(self, library.pm_destroy, self._program)

    def use_batch(self, batch: RaggedBatch) -> None:
        """Read every step's indices from these tensors."""
        fields = (
            batch.token_ids,
            batch.positions,
            batch.slots,
            batch.row_starts,
            batch.context_lengths,
            batch.block_starts,
            batch.block_ids,
            batch.sampled_rows,
        )
        addresses = (ctypes.c_void_p * len(fields))(*(field.data_ptr() for field in fields))
        self._library.pm_set_batch(self._program, addresses)
        self._kept.append(batch)

    @property
    def num_recorded(self) -> int:
        """Count the operations recorded so far."""
        count: int = self._library.pm_num_operations(self._program)
        return count

    def run(self, operations: range, num_rows: int, num_sequences: int, num_sampled: int) -> None:
        """Compute recorded operations for a step of this size."""
        self._library.pm_run(
            self._program, operations.start, operations.stop, num_rows, num_sequences, num_sampled
        )

    def seconds(self) -> StepSeconds:
        """Return where the time went."""
        seconds = (ctypes.c_double * 4)()
        self._library.pm_seconds(self._program, seconds)
        return StepSeconds(*seconds)

    def pack(
        self, weight: torch.Tensor, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        """Lay a weight out in panels."""
        num_out, num_in = weight.shape
        assert num_in % self._values_per_word == 0, "rows are whole words"
        num_words = num_in // self._values_per_word
        packed = self._pack_words(weight, num_words, is_gated=activation is not None)
        return Linear(packed, self._pad(bias), num_in, num_out, activation)

    def pack_int8(
        self,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        activation: Activation | None,
    ) -> Linear:
        """Lay signed bytes out in panels, with each column's scale and offset beside."""
        offsets = weight.int().sum(-1, dtype=torch.int32) * _INT8_ZERO
        beside = torch.stack((scales.float().view(torch.int32), offsets))
        num_out, num_in = weight.shape
        assert num_in % _INT8_PER_WORD == 0, "rows are whole words"
        is_gated = activation is not None
        return Linear(
            self._pack_words(weight, num_in // _INT8_PER_WORD, is_gated=is_gated),
            self._pad(bias),
            num_in,
            num_out,
            activation,
            torch.stack([self._pack_words(row, 1, is_gated=is_gated) for row in beside]),
        )

    def pack_int4(
        self, weight: QuantisedWeight, bias: torch.Tensor | None, activation: Activation | None
    ) -> Linear:
        """Lay half bytes out in panels, eight inputs to a word, with their groups' scales."""
        num_out, num_words = len(weight.values), weight.num_in // _INT4_PER_WORD
        assert weight.num_in % _INT4_PER_WORD == 0, "rows are whole words"
        assert weight.group_size % _INT4_PER_WORD == 0, "words do not straddle groups"
        is_gated = activation is not None
        scales = weight.scales.float()
        return Linear(
            self._pack_words(weight.values, num_words, is_gated=is_gated),
            self._pad(bias),
            weight.num_in,
            num_out,
            activation,
            self._pack_words(scales, scales.shape[1], is_gated=is_gated),
            weight.group_size,
        )

    def pack_table(self, table: torch.Tensor) -> Linear:
        """Lay a table out in panels: looking a row up is nothing beside computing with it."""
        return self.pack(table, None, None)

    def embed(self, table: Linear, batch: RaggedBatch, scale: float) -> torch.Tensor:  # noqa: ARG002 read by address
        """Look up the rows' tokens."""
        residual = self._buffer("embed", table.num_in, torch.float32)
        self._library.pm_embed(self._program, self._packed(table), scale, residual.data_ptr())
        return residual

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Root mean square normalisation."""
        out = self._buffer("rms_norm", x.shape[1])
        self._record_norm(x, weight, eps, out, is_sampled=False)
        return out

    def rms_norm_parts(
        self, x: torch.Tensor, parts: Parts, weight: torch.Tensor, eps: float
    ) -> None:
        """Normalise parts of rows where they are, each by itself."""
        first = x.data_ptr() + parts.start * x.element_size()
        self._library.pm_norm_parts(
            self._program,
            first,
            x.shape[1],
            parts.count,
            self._address(weight),
            len(weight),
            eps,
        )

    def rms_norm_add(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor
    ) -> None:
        """Normalise rows and add them to the residual."""
        self._library.pm_norm_add(
            self._program,
            x.data_ptr(),
            self._address(weight),
            len(weight),
            eps,
            residual.data_ptr(),
        )

    def narrow(self, x: torch.Tensor) -> torch.Tensor:
        """Return float32 rows in the model's type."""
        out = self._buffer("narrow", x.shape[1])
        self._library.pm_narrow(self._program, x.data_ptr(), x.shape[1], out.data_ptr())
        return out

    def rms_norm_sampled(
        self,
        x: torch.Tensor,
        batch: RaggedBatch,  # noqa: ARG002 read by address
        weight: torch.Tensor,
        eps: float,
    ) -> torch.Tensor:
        """Normalise the sampled rows alone."""
        out = torch.empty(self._sizes.num_tokens, x.shape[1], dtype=self._dtype)
        self._record_norm(x, weight, eps, out, is_sampled=True)
        return out

    def linear(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return x @ weight.T + bias."""
        out = self._buffer("linear", weight.num_out)
        bias = None if weight.bias is None else self._address(weight.bias)
        self._library.pm_linear(*self._product(x, weight), bias, out.data_ptr())
        return out

    def linear_add(self, x: torch.Tensor, weight: Linear, residual: torch.Tensor) -> None:
        """Add x @ weight.T to the residual."""
        self._library.pm_linear_add(*self._product(x, weight), residual.data_ptr())

    def linear_gated(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return activation(gate) * up."""
        out = self._buffer("linear_gated", weight.num_out // 2)
        is_gelu = int(weight.activation is Activation.GELU_TANH)
        self._library.pm_linear_gated(*self._product(x, weight), is_gelu, out.data_ptr())
        return out

    def experts_add(self, x: torch.Tensor, experts: Experts, residual: torch.Tensor) -> None:
        """Add to the residual what each row's experts make of it."""
        packed = [
            PackedExpert(self._packed(expert.gate_up), self._packed(expert.down))
            for expert in experts.experts
        ]
        self._library.pm_experts_add(
            *self._product(x, experts.router),
            (PackedExpert * len(packed))(*packed),
            experts.num_chosen,
            int(experts.is_renormalised),
            int(experts.has_shared),
            int(experts.experts[0].gate_up.activation is Activation.GELU_TANH),
            residual.data_ptr(),
        )

    def rotate_and_store(
        self,
        qkv: torch.Tensor,
        batch: RaggedBatch,  # noqa: ARG002 read by address
        rope: RopeTable,
        cache: LayerCache,
        shape: AttentionShape,
    ) -> None:
        """Rotate queries and keys in place and write keys and values to the cache."""
        assert shape.head_dim <= _LARGEST_HEAD, "a head's bytes have a fixed place"
        for tensor in (cache.keys, cache.values):
            self._library.pm_use_large_pages(tensor.data_ptr(), tensor.nbytes)
        self._library.pm_rotate(
            self._program,
            qkv.data_ptr(),
            self._address(rope.cosines),
            self._address(rope.sines),
            rope.cosines.shape[1],
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            *self._addresses(cache),
            cache.block_size,
        )

    def attend(
        self,
        qkv: torch.Tensor,
        batch: RaggedBatch,  # noqa: ARG002 read by address
        cache: LayerCache,
        shape: AttentionShape,
    ) -> torch.Tensor:
        """Let each row's queries attend to its sequence's cached tokens up to itself."""
        assert shape.head_dim <= _LARGEST_HEAD, "a tile's sums have a fixed place"
        assert _SPAN % cache.block_size == 0, "blocks do not straddle spans"
        out = self._buffer("attend", shape.num_heads * shape.head_dim)
        self._library.pm_attend(
            self._program,
            qkv.data_ptr(),
            shape.num_heads,
            shape.num_kv_heads,
            shape.head_dim,
            shape.scale,
            shape.window or 0,
            shape.softcap or 0.0,
            *self._addresses(cache),
            cache.block_size,
            out.data_ptr(),
        )
        return out

    def scores(self, x: torch.Tensor, weight: Linear, softcap: float | None) -> torch.Tensor:
        """Score the vocabulary for sampled rows."""
        out = torch.empty(self._sizes.num_sequences, weight.num_out, dtype=torch.float32)
        self._kept.append(out)
        self._library.pm_scores(*self._product(x, weight), softcap or 0.0, out.data_ptr())
        return out

    def best(self, x: torch.Tensor, weight: Linear) -> torch.Tensor:
        """Return the token with the highest score for each sampled row."""
        out = torch.empty(self._sizes.num_sequences, dtype=torch.int32)
        self._kept.append(out)
        self._library.pm_best(*self._product(x, weight), self._sizes.num_sequences, out.data_ptr())
        return out

    def _pack_words(self, weight: torch.Tensor, num_words: int, *, is_gated: bool) -> torch.Tensor:
        num_out = weight.shape[0]
        packed = self._arena.take(self._library.pm_packed_words(num_out, num_words))
        weight = weight.contiguous()
        self._library.pm_pack(
            weight.data_ptr(), num_out, num_words, int(is_gated), packed.data_ptr()
        )
        return packed

    def _pad(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        """Fill a bias up to whole panels."""
        if bias is None:
            return None
        panel: int = self._library.pm_panel()
        return torch.nn.functional.pad(bias.float(), (0, -len(bias) % panel))

    def _product(self, x: torch.Tensor, weight: Linear) -> tuple[object, ...]:
        """Return the arguments of a product; the weight's addresses are copied by the callee."""
        return self._program, x.data_ptr(), self._packed(weight)

    def _packed(self, weight: Linear) -> PackedWeight:
        """Return where a weight lies."""
        data = self._address(weight.data)
        if weight.group_size is not None and weight.scales is not None:
            num_words = weight.num_in // _INT4_PER_WORD
            scales = self._address(weight.scales)
            return PackedWeight(data, num_words, weight.num_out, scales, None, weight.group_size)
        if weight.scales is None:
            return PackedWeight(data, weight.num_in // self._values_per_word, weight.num_out)
        scales, offsets = (self._address(row) for row in weight.scales)
        num_words = weight.num_in // _INT8_PER_WORD
        return PackedWeight(data, num_words, weight.num_out, scales, offsets)

    def _record_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        out: torch.Tensor,
        *,
        is_sampled: bool,
    ) -> None:
        self._kept.append(out)
        self._library.pm_norm(
            self._program,
            x.data_ptr(),
            self._address(weight),
            x.shape[1],
            eps,
            int(is_sampled),
            out.data_ptr(),
        )

    def _buffer(self, operation: str, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return where an operation's result goes; the same place for the same operation."""
        key = (operation, width)
        if key not in self._buffers:
            shape = (self._sizes.num_tokens, width)
            self._buffers[key] = torch.zeros(shape, dtype=dtype or self._dtype)
        return self._buffers[key]

    def _addresses(self, cache: LayerCache) -> tuple[int | None, ...]:
        """Return where keys, values and their scales lie."""
        scales = None if cache.scales is None else self._address(cache.scales)
        return self._address(cache.keys), self._address(cache.values), scales

    def _address(self, tensor: torch.Tensor) -> int:
        """Return where a tensor lies, and keep it there."""
        assert tensor.is_contiguous(), "recorded tensors are read from front to back"
        self._kept.append(tensor)
        return tensor.data_ptr()


class _Arena:
    """Memory for packed weights in a few large pieces, which large pages can cover."""

    _PIECE_WORDS = 8 << 20

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._rest = torch.empty(0, dtype=torch.int32)

    def take(self, num_words: int) -> torch.Tensor:
        """Return a part that nothing else uses, on a cache line of its own."""
        num_taken = -(-num_words // 16) * 16
        if num_taken > len(self._rest):
            self._rest = torch.empty(max(num_taken, self._PIECE_WORDS), dtype=torch.int32)
            self._library.pm_use_large_pages(self._rest.data_ptr(), self._rest.nbytes)
        taken, self._rest = self._rest[:num_words], self._rest[num_taken:]
        return taken


class NativeModel:
    """A decoder recorded once: forward, scores and best each run their part of the program."""

    def __init__(self, decoder: Decoder, kernels: NativeKernels, buffers: StepBuffers) -> None:
        self._kernels = kernels
        kernels.use_batch(buffers.whole)
        self._hidden = decoder.forward(buffers.whole)
        end_of_forward = kernels.num_recorded
        self._best = decoder.best(self._hidden)
        end_of_best = kernels.num_recorded
        self._scores = decoder.scores(self._hidden)
        self._forward_operations = range(end_of_forward)
        self._best_operations = range(end_of_forward, end_of_best)
        self._scores_operations = range(end_of_best, kernels.num_recorded)

    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """Compute a batch that lies in the buffers; return its sampled rows."""
        num_sampled = len(batch.sampled_rows)
        self._kernels.run(
            self._forward_operations,
            len(batch.token_ids),
            len(batch.context_lengths),
            num_sampled,
        )
        return self._hidden[:num_sampled]

    def best(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the most likely token of each row that forward returned last."""
        self._kernels.run(self._best_operations, 0, 0, len(hidden))
        return self._best[: len(hidden)]

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score the vocabulary for the rows that forward returned last."""
        self._kernels.run(self._scores_operations, 0, 0, len(hidden))
        return self._scores[: len(hidden)]
