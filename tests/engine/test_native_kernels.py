"""The compiled kernels mean what the plain ones mean, on ragged batches and poisoned memory."""

import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.build import compile_variant
from engine.kernels.interface import AttentionShape, Experts, FeedForward, RaggedBatch
from engine.kernels.native import NativeKernels
from engine.kernels.native_library import fitting_variants, library_path, load_library
from engine.kernels.reference import ReferenceKernels
from engine.kv_cache import LayerCache
from engine.model.config import Activation
from engine.model.rope import RopeTable
from engine.step_buffers import StepSizes

SIZES = StepSizes(num_tokens=64, num_sequences=6, blocks_per_sequence=16)
BLOCK_SIZE = 16
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
# A value that lies between two bytes may go either way: a step of one byte in a sum of many.
TIE_TOLERANCE = 2e-2

VARIANTS = {variant.name: variant for variant in fitting_variants() if variant.name != "avx512"}
types = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
seeds = given(st.integers(0, 2**31))
some = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", params=VARIANTS)
def native(request):
    """Return a function that makes kernels of one instruction set, two threads each."""
    variant = VARIANTS[request.param]
    if not library_path(variant).exists():
        compiler = shutil.which("g++") or shutil.which("clang++")
        assert compiler, "the native kernels are tested where there is a compiler"
        compile_variant(compiler, variant)
    library = load_library(variant)
    return lambda dtype: NativeKernels(variant, library, dtype, SIZES, 2)


def plain(dtype):
    return ReferenceKernels(dtype, is_packed=False)


def run(kernels, num_rows=0, num_sequences=0, num_sampled=0):
    kernels.run(range(kernels.num_recorded), num_rows, num_sequences, num_sampled)


def assert_close(ours, theirs, tolerance):
    scale = theirs.float().abs().max() + 1e-6
    worst = (ours.float() - theirs.float()).abs().max() / scale
    assert worst <= TOLERANCE.get(tolerance, tolerance)


def a_matrix(generator, *shape, dtype=torch.float32):
    return torch.randn(*shape, generator=generator).to(dtype)


def a_product(seed, dtype):
    """Return rows, a weight of an odd shape, and how many of the rows count."""
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_out, half_in = (
        int(torch.randint(1, limit, (), generator=generator)) for limit in (64, 100, 60)
    )
    x = torch.full((64, 2 * half_in), float("nan"), dtype=dtype)
    x[:num_rows] = a_matrix(generator, num_rows, 2 * half_in, dtype=dtype)
    return x, a_matrix(generator, num_out, 2 * half_in, dtype=dtype), num_rows


@types
@some
@seeds
def test_linear_layers_agree(native, dtype, seed):
    x, weight, num_rows = a_product(seed, dtype)
    bias = torch.linspace(-1, 1, len(weight))
    kernels = native(dtype)
    out = kernels.linear(x, kernels.pack(weight, bias, None))

    run(kernels, num_rows)

    expected = plain(dtype).linear(x[:num_rows], plain(dtype).pack(weight, bias, None))
    assert_close(out[:num_rows], expected, dtype)


@types
@some
@seeds
def test_linear_layers_add_to_the_residual(native, dtype, seed):
    x, weight, num_rows = a_product(seed, dtype)
    residual = torch.ones(64, len(weight))
    kernels = native(dtype)
    kernels.linear_add(x, kernels.pack(weight, None, None), residual)

    run(kernels, num_rows)

    assert_close(residual[:num_rows], 1 + x[:num_rows].float() @ weight.float().T, dtype)
    assert (residual[num_rows:] == 1).all()


@types
@pytest.mark.parametrize("activation", [*Activation])
@some
@seeds
def test_gated_layers_agree(native, dtype, activation, seed):
    x, weight, num_rows = a_product(seed, dtype)
    weight = torch.cat((weight, weight.flip(0)))
    kernels = native(dtype)
    out = kernels.linear_gated(x, kernels.pack(weight, None, activation))

    run(kernels, num_rows)

    reference = plain(torch.float32)
    expected = reference.linear_gated(
        x[:num_rows].float(), reference.pack(weight.float(), None, activation)
    )
    assert_close(out[:num_rows], expected, dtype)


@types
@some
@given(st.integers(0, 2**31), st.booleans(), st.booleans())
def test_layers_of_experts_agree(native, dtype, seed, is_renormalised, has_shared):
    generator = torch.Generator().manual_seed(seed)
    x, router, num_rows = a_product(seed, dtype)
    num_experts, width = router.shape
    halves = [
        (
            a_matrix(generator, 2 * inner, width, dtype=dtype),
            a_matrix(generator, width, inner, dtype=dtype) / 8,
        )
        for inner in [10, 6, 34][: num_experts % 3 + 1] * num_experts
    ][:num_experts]
    num_chosen = max(1, (num_experts - has_shared) // 2)
    residual = torch.ones(64, width)
    kernels, reference = native(dtype), plain(torch.float32)

    def laid_out(kernels, dtype):
        return Experts(
            kernels.pack(router.to(dtype), None, None),
            tuple(
                FeedForward(
                    kernels.pack(gate_up.to(dtype), None, Activation.SILU),
                    kernels.pack(down.to(dtype), None, None),
                )
                for gate_up, down in halves
            ),
            num_chosen,
            is_renormalised,
            has_shared and num_experts > 1,
        )

    kernels.experts_add(x, laid_out(kernels, dtype), residual)

    run(kernels, num_rows)

    expected = torch.ones(num_rows, width)
    reference.experts_add(x[:num_rows].float(), laid_out(reference, torch.float32), expected)
    assert_close(residual[:num_rows], expected, dtype)
    assert (residual[num_rows:] == 1).all()


@types
@some
@seeds
def test_products_of_bytes_agree(native, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    num_rows, num_out, num_in = (
        int(torch.randint(1, limit, (), generator=generator)) for limit in (64, 100, 60)
    )
    x = torch.full((64, 4 * num_in), float("nan"), dtype=dtype)
    x[:num_rows] = a_matrix(generator, num_rows, 4 * num_in, dtype=dtype)
    x[0] = 0
    weight = torch.randint(-127, 128, (num_out, 4 * num_in), generator=generator).to(torch.int8)
    scales, bias = torch.rand(num_out, generator=generator), torch.linspace(-1, 1, num_out)
    kernels, reference = native(dtype), plain(dtype)
    out = kernels.linear(x, kernels.pack_int8(weight, scales, bias, None))

    run(kernels, num_rows)

    packed = reference.pack_int8(weight, scales, bias, None)
    assert_close(out[:num_rows], reference.linear(x[:num_rows], packed), TIE_TOLERANCE)


@types
@some
@seeds
def test_gated_products_of_bytes_agree(native, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    half_out, num_in = (int(torch.randint(1, 60, (), generator=generator)) for _ in range(2))
    x = a_matrix(generator, 64, 4 * num_in, dtype=dtype)
    weight = torch.randint(-127, 128, (2 * half_out, 4 * num_in), generator=generator)
    scales = torch.rand(2 * half_out, generator=generator) / 127
    quantised = (weight.to(torch.int8), scales, None, Activation.SILU)
    kernels, reference = native(dtype), plain(torch.float32)
    out = kernels.linear_gated(x, kernels.pack_int8(*quantised))

    run(kernels, 9)

    expected = reference.linear_gated(x[:9].float(), reference.pack_int8(*quantised))
    assert_close(out[:9], expected, TIE_TOLERANCE)


@types
@some
@seeds
def test_the_best_token_is_the_one_with_the_highest_score(native, dtype, seed):
    x, weight, num_rows = a_product(seed, dtype)
    num_sampled = min(num_rows, SIZES.num_sequences)
    kernels = native(dtype)
    packed = kernels.pack(weight, None, None)
    scores, best = kernels.scores(x, packed, 30.0), kernels.best(x, packed)

    run(kernels, num_sampled=num_sampled)

    expected = 30 * torch.tanh(x[:num_sampled].float() @ weight.float().T / 30)
    assert_close(scores[:num_sampled], expected, dtype)
    assert torch.equal(best[:num_sampled], scores[:num_sampled].argmax(-1).int())


@types
def test_of_equal_scores_the_lowest_token_wins(native, dtype):
    kernels = native(dtype)
    weight = torch.ones(3000, 8, dtype=dtype)
    best = kernels.best(torch.ones(64, 8, dtype=dtype), kernels.pack(weight, None, None))

    run(kernels, num_sampled=2)

    assert best[:2].tolist() == [0, 0]


@types
@some
@seeds
def test_norms_agree(native, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    width = int(torch.randint(1, 100, (), generator=generator))
    x, weight = a_matrix(generator, 64, width), a_matrix(generator, width)
    kernels = native(dtype)
    out = kernels.rms_norm(x, weight, 1e-5)

    run(kernels, num_rows=50)

    assert_close(out[:50], plain(dtype).rms_norm(x[:50], weight, 1e-5), dtype)


@types
@some
@seeds
def test_rows_of_a_packed_table_are_the_tables_own_bits(native, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    num_tokens, half = (int(torch.randint(1, 80, (), generator=generator)) for _ in range(2))
    table = a_matrix(generator, num_tokens, 2 * half, dtype=dtype)
    ids = torch.randint(num_tokens, (64,), generator=generator, dtype=torch.int32)
    batch = RaggedBatch(ids, *[ids] * 7)
    kernels = native(dtype)
    residual = kernels.embed(kernels.pack_table(table), batch, 2.5)
    kernels.use_batch(batch)

    run(kernels, num_rows=50)

    assert torch.equal(residual[:50], table[ids[:50]].float() * 2.5)


def a_ragged_batch(generator, kernels):
    """Return a batch of prompt chunks and single tokens on scattered blocks."""

    def number(low, high):
        return int(torch.randint(low, high, (), generator=generator))

    num_sequences = number(1, SIZES.num_sequences + 1)
    chunks = [number(1, 10) for _ in range(num_sequences)]
    contexts = [chunk + number(0, 140) for chunk in chunks]
    num_blocks = [-(-context // BLOCK_SIZE) for context in contexts]
    order = torch.randperm(SIZES.num_sequences * 16, generator=generator).tolist()
    tables = [[order.pop() for _ in range(count)] for count in num_blocks]
    positions = [
        (index, position)
        for index, (chunk, context) in enumerate(zip(chunks, contexts, strict=True))
        for position in range(context - chunk, context)
    ]
    slots = [
        tables[index][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for index, position in positions
    ]
    batch = RaggedBatch(
        token_ids=indices([0] * len(positions)),
        positions=indices([position for _, position in positions]),
        slots=indices(slots),
        row_starts=indices([sum(chunks[:end]) for end in range(num_sequences + 1)]),
        context_lengths=indices(contexts),
        block_starts=indices([sum(num_blocks[:end]) for end in range(num_sequences + 1)]),
        block_ids=indices([block for table in tables for block in table]),
        sampled_rows=indices([0]),
    )
    kernels.use_batch(batch)
    return batch


def indices(values):
    return torch.tensor(values, dtype=torch.int32)


def a_poisoned_cache(generator, batch, shape, dtype, stored):
    """Return a cache of random keys and values where the batch may look, and poison elsewhere."""
    num_slots = SIZES.num_sequences * 16 * BLOCK_SIZE
    is_bytes = stored is torch.int8
    poison = -128 if is_bytes else float("nan")
    scales = torch.full((num_slots // BLOCK_SIZE, shape.num_kv_heads, 2, BLOCK_SIZE), float("nan"))
    cache = LayerCache(
        torch.full(key_shape(shape, stored), poison, dtype=stored),
        torch.full(value_shape(shape, stored), poison, dtype=stored),
        scales if is_bytes else None,
    )
    slots = []
    for index, context in enumerate(batch.context_lengths.tolist()):
        first = int(batch.block_starts[index])
        num_rows = int(batch.row_starts[index + 1] - batch.row_starts[index])
        for position in range(context - num_rows):
            block = int(batch.block_ids[first + position // BLOCK_SIZE])
            slots.append(block * BLOCK_SIZE + position % BLOCK_SIZE)
    if slots:
        assert max(slots) < num_slots
        filled = replace(batch, positions=indices([0] * len(slots)), slots=indices(slots))
        heads = shape.num_heads + 2 * shape.num_kv_heads
        rows = a_matrix(generator, len(slots), heads * shape.head_dim, dtype=dtype)
        no_turn = RopeTable(torch.ones(1, 2), torch.zeros(1, 2))
        plain(dtype).rotate_and_store(rows, filled, no_turn, cache, shape)
    return cache


def key_shape(shape, dtype):
    packing = 4 // dtype.itemsize
    num_blocks = SIZES.num_sequences * 16
    return (num_blocks, shape.num_kv_heads, shape.head_dim // packing, BLOCK_SIZE, packing)


def value_shape(shape, dtype):
    packing = 4 // dtype.itemsize
    num_blocks = SIZES.num_sequences * 16
    return (num_blocks, shape.num_kv_heads, BLOCK_SIZE // packing, shape.head_dim, packing)


def a_copy(cache):
    scales = None if cache.scales is None else cache.scales.clone()
    return LayerCache(cache.keys.clone(), cache.values.clone(), scales)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float32, torch.int8),
        (torch.bfloat16, torch.int8),
    ],
    ids=["fp32", "bf16", "fp32-int8", "bf16-int8"],
)
@pytest.mark.parametrize(
    "shape",
    [
        AttentionShape(9, 3, 64, 0.125, window=None, softcap=None),
        AttentionShape(4, 4, 20, 0.2, window=None, softcap=None),
        AttentionShape(8, 1, 96, 0.1, window=40, softcap=None),
        AttentionShape(2, 1, 32, 0.3, window=None, softcap=5.0),
    ],
    ids=["grouped", "one-each", "window", "softcap"],
)
@some
@seeds
def test_rotation_and_attention_agree_on_poisoned_caches(native, dtype, stored, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    kernels = native(dtype)
    batch = a_ragged_batch(generator, kernels)
    num_rows = len(batch.positions)
    cache = a_poisoned_cache(generator, batch, shape, dtype, stored)
    theirs = a_copy(cache)
    angles = a_matrix(generator, 256, shape.head_dim // 4)
    rope = RopeTable(angles.cos(), angles.sin())
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    qkv = torch.full((64, width), float("nan"), dtype=dtype)
    qkv[:num_rows] = a_matrix(generator, num_rows, width, dtype=dtype)
    expected_qkv = qkv[:num_rows].clone()
    kernels.rotate_and_store(qkv, batch, rope, cache, shape)
    out = kernels.attend(qkv, batch, cache, shape)

    run(kernels, num_rows, len(batch.context_lengths))

    reference = plain(dtype)
    reference.rotate_and_store(expected_qkv, batch, rope, theirs, shape)
    assert_close(qkv[:num_rows], expected_qkv, dtype)
    expected = reference.attend(expected_qkv, batch, theirs, shape)
    assert_close(out[:num_rows], expected, TIE_TOLERANCE if stored is torch.int8 else dtype)


@types
def test_a_row_has_the_same_bits_whatever_runs_beside_it(native, dtype):
    generator = torch.Generator().manual_seed(5)
    x, weight = a_matrix(generator, 64, 96, dtype=dtype), a_matrix(generator, 100, 96, dtype=dtype)
    together = native(dtype)
    out = together.linear(x, together.pack(weight, None, None))
    run(together, num_rows=64)
    alone = native(dtype)
    single = alone.linear(x[40:41].contiguous(), alone.pack(weight, None, None))

    run(alone, num_rows=1)

    assert torch.equal(single[0], out[40])
