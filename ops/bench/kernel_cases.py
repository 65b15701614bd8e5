"""Every operation of a decoder on random ragged inputs: what two implementations are compared on.

Owns the inputs. Memory that no operation may read holds NaN, and each case computes on copies, so
that a kernel that reads or writes beyond its own shows in its result or in its neighbour's. Used by
the tests of the kernels for a GPU, in Triton's interpreter, and by device_check on a device.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from engine.kernels.interface import (
    AttentionShape,
    Experts,
    FeedForward,
    Kernels,
    Linear,
    Parts,
    RaggedBatch,
)
from engine.kernels.reference import ReferenceKernels
from engine.kv_cache import LayerCache
from engine.model.config import Activation, Scheme
from engine.model.rope import RopeTable
from engine.quantised import QuantisedWeight

# What a result may be off by, over the largest value there is.
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
_TIE_TOLERANCE = 2e-2  # a value between two bytes may go either way

SHAPES = {
    "grouped": AttentionShape(9, 3, 64, 0.125, window=None, softcap=None),
    "one-each": AttentionShape(4, 4, 20, 0.2, window=None, softcap=None),
    "window": AttentionShape(8, 1, 96, 0.1, window=40, softcap=None),
    "softcap": AttentionShape(2, 1, 32, 0.3, window=None, softcap=5.0),
    "large-heads": AttentionShape(4, 2, 256, 0.06, window=100, softcap=50.0),
}
_BLOCK_SIZE = 16
_NUM_SEQUENCES = 4
_LONGEST = 96


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One operation on fixed inputs."""

    name: str
    compute: Callable[[Kernels], torch.Tensor]
    tolerance: float

    def error(self, kernels: Kernels, reference: Kernels) -> float:
        """Return how far the results lie apart at most, over the largest; NaN is infinitely far."""
        ours, theirs = self.compute(kernels).float(), self.compute(reference).float()
        difference = (ours - theirs).abs().max() / (theirs.abs().max() + 1e-6)
        return float(difference.nan_to_num(nan=float("inf")))


class CaseMaker:
    """Makes cases of one type on one device; the same seed makes the same."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self._dtype = dtype
        self._device = device
        self._generator = torch.Generator().manual_seed(seed)
        self._tolerance = TOLERANCES[dtype]

    def cases(self) -> Iterator[KernelCase]:
        """Make a case of every operation and every kind of attention."""
        for name, shape in SHAPES.items():
            for longest_chunk in (1, 12):
                yield self.attention(f"attention, {name}, {longest_chunk}", shape, longest_chunk)
            yield self.attention(f"attention, {name}, bytes", shape, 12, in_bytes=True)
        yield from self.rows()
        yield from self.products()
        yield self.experts()
        yield from self.heads()

    def attention(
        self, name: str, shape: AttentionShape, longest_chunk: int, *, in_bytes: bool = False
    ) -> KernelCase:
        """Turn, store and attend, with chunks of at most so many rows; one result of all three."""
        batch = self._batch(longest_chunk)
        cache = self._cache(batch, shape, torch.int8 if in_bytes else self._dtype)
        num_rows = len(batch.positions)
        qkv = self._matrix(num_rows, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim)
        angles = self._matrix(_LONGEST, shape.head_dim // 4, dtype=torch.float32)
        rope = RopeTable(angles.cos(), angles.sin())

        def compute(kernels: Kernels) -> torch.Tensor:
            turned = qkv.clone()
            written = _copy(cache)
            kernels.rotate_and_store(turned, batch, rope, written, shape)
            attended = kernels.attend(turned, batch, written, shape)
            return torch.cat((turned.flatten(), attended.flatten(), *_written(written)))

        tolerance = _TIE_TOLERANCE if in_bytes else None
        return self._case(name, compute, tolerance)

    def rows(self) -> Iterator[KernelCase]:
        """Make cases of what is done to rows: embedding, norms and the additions beside them."""
        num_rows, width = self._number(1, 40), self._number(1, 100)
        residual = self._matrix(num_rows, width, dtype=torch.float32)
        norm = self._matrix(width, dtype=torch.float32)
        half = self._matrix(num_rows, 5 * width)
        batch = replace(
            self._batch(1),
            token_ids=self._indices([index % 30 for index in range(num_rows)]),
            sampled_rows=self._indices([num_rows - 1, 0]),
        )
        table = self._matrix(30, width)
        weight = self._matrix(width, 5 * width)

        def add_twice(kernels: Kernels) -> torch.Tensor:
            x = residual.clone()
            packed = kernels.pack(weight, None, None)
            kernels.linear_add(half, packed, x)
            kernels.linear_add(half, packed, x)
            return torch.cat((kernels.rms_norm(x, norm, 1e-5).float(), x), -1)

        def norm_parts(kernels: Kernels) -> torch.Tensor:
            x = half.clone()
            kernels.rms_norm_parts(x, Parts(width, 3), norm, 1e-5)
            return x

        def norm_add(kernels: Kernels) -> torch.Tensor:
            x = residual.clone()
            kernels.rms_norm_add(half[:, :width].contiguous(), norm, 1e-5, x)
            return x

        def sample(kernels: Kernels) -> torch.Tensor:
            x = residual.clone()
            kernels.linear_add(half, kernels.pack(weight, None, None), x)
            return kernels.rms_norm_sampled(x, batch, norm, 1e-5)

        yield self._case(
            "embed", lambda kernels: kernels.embed(kernels.pack_table(table), batch, 2.5)
        )
        yield self._case("norm", lambda kernels: kernels.rms_norm(residual, norm, 1e-5))
        yield self._case("add and norm", add_twice)
        yield self._case("norm parts", norm_parts)
        yield self._case("norm and add", norm_add)
        yield self._case("add, norm sampled", sample)
        yield self._case("narrow", lambda kernels: kernels.narrow(residual))

    def products(self) -> Iterator[KernelCase]:
        """Make cases of linear layers, gated ones and quantised ones."""
        num_rows, num_out, num_in = self._number(1, 70), self._number(1, 50), self._number(1, 20)
        x = self._matrix(num_rows, 16 * num_in)
        weight = self._matrix(2 * num_out, 16 * num_in) / (4 * num_in**0.5)
        bias = self._matrix(2 * num_out, dtype=torch.float32)
        whole = self._whole(-127, 2 * num_out, 16 * num_in).to(torch.int8)
        scales = self._matrix(2 * num_out, dtype=torch.float32).abs()
        nibbles = (self._whole(0, 2 * num_out, 8 * num_in) & 255).to(torch.uint8)
        groups = self._matrix(2 * num_out, -(-num_in // 2), dtype=torch.float32).abs()
        half_bytes = QuantisedWeight(Scheme.INT4, nibbles, groups, 32)
        silu, gelu = Activation.SILU, Activation.GELU_TANH

        def linear(pack: Callable[[Kernels], Linear]) -> Callable[[Kernels], torch.Tensor]:
            return lambda kernels: kernels.linear(x, pack(kernels))

        def gated(pack: Callable[[Kernels], Linear]) -> Callable[[Kernels], torch.Tensor]:
            return lambda kernels: kernels.linear_gated(x, pack(kernels))

        yield self._case("linear", linear(lambda kernels: kernels.pack(weight, bias, None)))
        yield self._case("silu gate", gated(lambda kernels: kernels.pack(weight, None, silu)))
        yield self._case("gelu gate", gated(lambda kernels: kernels.pack(weight, None, gelu)))
        yield self._case(
            "int8 linear",
            linear(lambda kernels: kernels.pack_int8(whole, scales, bias, None)),
            _TIE_TOLERANCE,
        )
        yield self._case(
            "int4 linear", linear(lambda kernels: kernels.pack_int4(half_bytes, bias, None))
        )

    def experts(self) -> KernelCase:
        """Make a case of a layer of experts, one of them shared.

        Each expert's score is one of a row's numbers: no rounding changes a choice.
        """
        num_rows, num_experts, width = self._number(1, 40), self._number(3, 9), 16
        x = self._matrix(num_rows, width)
        router = torch.eye(num_experts, width, dtype=self._dtype, device=self._device)
        residual = self._matrix(num_rows, width, dtype=torch.float32)
        halves = [
            (self._matrix(2 * width, width) / 4, self._matrix(width, width) / 4)
            for _ in range(num_experts)
        ]

        def compute(kernels: Kernels) -> torch.Tensor:
            added = residual.clone()
            packed = tuple(
                FeedForward(
                    kernels.pack(gate_up, None, Activation.SILU), kernels.pack(down, None, None)
                )
                for gate_up, down in halves
            )
            layer = Experts(
                kernels.pack(router, None, None),
                packed,
                num_chosen=2,
                is_renormalised=True,
                has_shared=True,
            )
            kernels.experts_add(x, layer, added)
            return added

        return self._case("experts", compute)

    def heads(self) -> Iterator[KernelCase]:
        """Make cases of the vocabulary's scores and of the best of them."""
        num_rows, num_tokens, width = self._number(1, 40), self._number(1, 700), self._number(1, 90)
        x, weight = self._matrix(num_rows, width), self._matrix(num_tokens, width)
        scores = x.float() @ weight.float().T
        ones = torch.ones(num_rows + num_tokens, width, dtype=self._dtype, device=self._device)

        def score_of_best(kernels: Kernels) -> torch.Tensor:
            best = kernels.best(x, kernels.pack(weight, None, None)).long()
            return scores.gather(1, best.clamp(0, num_tokens - 1)[:, None])

        def score(kernels: Kernels) -> torch.Tensor:
            return kernels.scores(x, kernels.pack(weight, None, None), 30.0)

        yield self._case("scores", score)
        yield self._case("score of the best", score_of_best)
        yield self._case(
            "lowest of equals",
            lambda kernels: kernels.best(ones[:num_rows], kernels.pack(ones, None, None)),
        )

    def _case(
        self,
        name: str,
        compute: Callable[[Kernels], torch.Tensor],
        tolerance: float | None = None,
    ) -> KernelCase:
        return KernelCase(name, compute, max(self._tolerance, tolerance or 0.0))

    def _number(self, low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=self._generator))

    def _matrix(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        values = torch.randn(*shape, generator=self._generator)
        return values.to(self._device, dtype or self._dtype)

    def _whole(self, low: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, 128, shape, generator=self._generator).to(self._device)

    def _indices(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self._device)

    def _batch(self, longest_chunk: int) -> RaggedBatch:
        """Make a batch of chunks that continue contexts on scattered blocks."""
        count = self._number(1, _NUM_SEQUENCES + 1)
        chunks = [self._number(1, longest_chunk + 1) for _ in range(count)]
        contexts = [chunk + self._number(0, _LONGEST - longest_chunk) for chunk in chunks]
        num_blocks = [-(-context // _BLOCK_SIZE) for context in contexts]
        order = torch.randperm(_num_cache_blocks(), generator=self._generator).tolist()
        tables = [[order.pop() for _ in range(needed)] for needed in num_blocks]
        places = [
            (table, position)
            for table, chunk, context in zip(tables, chunks, contexts, strict=True)
            for position in range(context - chunk, context)
        ]
        return RaggedBatch(
            token_ids=self._indices([0] * len(places)),
            positions=self._indices([position for _, position in places]),
            slots=self._indices([_slot(table, position) for table, position in places]),
            row_starts=self._indices(_running_sums(chunks)),
            context_lengths=self._indices(contexts),
            block_starts=self._indices(_running_sums(num_blocks)),
            block_ids=self._indices([block for table in tables for block in table]),
            sampled_rows=self._indices([0]),
        )

    def _cache(self, batch: RaggedBatch, shape: AttentionShape, dtype: torch.dtype) -> LayerCache:
        """Make a cache in rows with keys and values where the batch may look, NaN elsewhere."""
        head = (_num_cache_blocks(), shape.num_kv_heads)
        keys = (*head, 1, _BLOCK_SIZE, shape.head_dim)
        values = (*head, _BLOCK_SIZE, shape.head_dim, 1)
        if dtype is torch.int8:
            cache = LayerCache(
                torch.full(keys, 127, dtype=dtype, device=self._device),
                torch.full(values, 127, dtype=dtype, device=self._device),
                torch.full((*head, 2, _BLOCK_SIZE), float("nan"), device=self._device),
            )
        else:
            cache = LayerCache(self._poison(*keys), self._poison(*values))
        rows, blocks = batch.row_starts.tolist(), batch.block_starts.tolist()
        slots = [
            _slot(batch.block_ids[blocks[index] :].tolist(), position)
            for index, context in enumerate(batch.context_lengths.tolist())
            for position in range(context - (rows[index + 1] - rows[index]))
        ]
        if slots:
            past = replace(
                batch, positions=self._indices([0] * len(slots)), slots=self._indices(slots)
            )
            width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
            ones, zeros = torch.ones(1, 1), torch.zeros(1, 1)
            no_turn = RopeTable(ones.to(self._device), zeros.to(self._device))
            reference = ReferenceKernels(self._dtype, is_packed=False)
            reference.rotate_and_store(self._matrix(len(slots), width), past, no_turn, cache, shape)
        return cache

    def _poison(self, *shape: int) -> torch.Tensor:
        return torch.full(shape, float("nan"), dtype=self._dtype, device=self._device)


def _copy(cache: LayerCache) -> LayerCache:
    scales = None if cache.scales is None else cache.scales.clone()
    return LayerCache(cache.keys.clone(), cache.values.clone(), scales)


def _written(cache: LayerCache) -> list[torch.Tensor]:
    """Return all that a cache holds as numbers of one size, poison as what it must stay."""
    if cache.scales is None:
        return [part.nan_to_num(1.0).flatten() for part in (cache.keys, cache.values)]
    bytes_held = [part.flatten() / 127 for part in (cache.keys, cache.values)]
    return [*bytes_held, cache.scales.nan_to_num(1.0).flatten()]


def _num_cache_blocks() -> int:
    return _NUM_SEQUENCES * (_LONGEST // _BLOCK_SIZE + 1)


def _slot(table: list[int], position: int) -> int:
    return table[position // _BLOCK_SIZE] * _BLOCK_SIZE + position % _BLOCK_SIZE


def _running_sums(counts: list[int]) -> list[int]:
    return [sum(counts[:end]) for end in range(len(counts) + 1)]
