from hypothesis import given, settings
from hypothesis import strategies as st

from engine.blocks import BlockPool, BlockTable


def a_pool(num_blocks=8, cache_key=b"weights", window=None):
    return BlockPool(num_blocks, block_size=4, cache_key=cache_key, window=window)


def a_filled_table(pool, token_ids):
    table = BlockTable()
    assert pool.grow(table, len(token_ids))
    pool.publish(table, token_ids, len(token_ids))
    return table


def test_a_table_grows_by_whole_blocks():
    pool = a_pool(num_blocks=3)
    table = BlockTable()

    assert pool.grow(table, 5)

    assert len(table.blocks) == 2
    assert pool.num_free == 1


def test_growing_beyond_the_pool_changes_nothing():
    pool = a_pool(num_blocks=2)
    table = BlockTable()
    pool.grow(table, 4)

    assert not pool.grow(table, 16)

    assert len(table.blocks) == 1
    assert pool.num_free == 1


def test_equal_beginnings_share_blocks_that_are_held():
    pool = a_pool()
    first = a_filled_table(pool, list(range(12)))
    second = BlockTable()

    num_cached = pool.adopt_cached(second, [*range(8), 99, 99, 99, 99])

    assert num_cached == 8
    assert second.blocks == first.blocks[:2]


def test_a_freed_block_is_found_again_until_it_is_reused():
    pool = a_pool(num_blocks=2)
    token_ids = list(range(8))
    pool.release(a_filled_table(pool, token_ids))
    other = BlockTable()
    pool.grow(other, 4)

    assert pool.adopt_cached(BlockTable(), [*token_ids, 8]) == 4


def test_the_last_token_is_never_taken_from_the_cache():
    pool = a_pool()
    a_filled_table(pool, list(range(8)))

    assert pool.adopt_cached(BlockTable(), list(range(8))) == 4


def test_equal_blocks_after_different_beginnings_are_different():
    pool = a_pool()
    a_filled_table(pool, [1, 1, 1, 1, 5, 5, 5, 5])

    assert pool.adopt_cached(BlockTable(), [2, 2, 2, 2, 5, 5, 5, 5, 0]) == 0


def test_other_weights_have_other_digests():
    first, second = a_pool(cache_key=b"one"), a_pool(cache_key=b"two")

    assert (
        a_filled_table(first, [1, 2, 3, 4]).digests != a_filled_table(second, [1, 2, 3, 4]).digests
    )


def test_without_a_cache_key_nothing_is_shared():
    pool = a_pool(cache_key=None)
    a_filled_table(pool, list(range(8)))

    assert pool.adopt_cached(BlockTable(), list(range(9))) == 0
    assert pool.cached_prefix(list(range(9))).num_blocks == 0


def test_a_cached_prefix_is_told_apart_by_whether_others_hold_it():
    pool = a_pool()
    token_ids = list(range(9))
    table = a_filled_table(pool, token_ids[:8])

    held = pool.cached_prefix(token_ids)
    pool.release(table)
    free = pool.cached_prefix(token_ids)

    assert (held.num_blocks, held.num_held) == (2, 2)
    assert (free.num_blocks, free.num_held) == (2, 0)


def test_what_slid_out_of_the_window_is_free_and_still_found():
    pool = a_pool(window=5)
    token_ids = list(range(17))
    table = a_filled_table(pool, token_ids[:16])
    first = table.blocks[0]

    pool.release_unseen(table, 16)

    # Token 16 sees tokens 12 to 16: three blocks of four are out of sight.
    assert pool.num_free == 7
    assert table.held.tolist() == [table.blocks[3]]
    assert first not in table.blocks
    assert pool.cached_prefix(token_ids).num_blocks == 4
    pool.check_integrity([table])


def test_a_full_block_stays_in_the_place_of_those_given_back():
    pool = a_pool(window=1)
    table = a_filled_table(pool, list(range(6)))

    pool.release_unseen(table, 6)

    assert table.num_unseen == 0  # the only full block: the other is half written


token_lists = st.lists(st.integers(0, 1), min_size=1, max_size=20)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "release"]), token_lists), max_size=40))
def test_blocks_are_conserved_whatever_is_taken_and_released(actions):
    pool = a_pool()
    tables: list[BlockTable] = []
    for verb, token_ids in actions:
        if verb == "release" and tables:
            pool.release(tables.pop(0))
        elif verb == "take":
            table = BlockTable()
            pool.adopt_cached(table, token_ids)
            if pool.grow(table, len(token_ids)):
                pool.publish(table, token_ids, len(token_ids))
            tables.append(table)
        pool.check_integrity(tables)
