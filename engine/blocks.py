"""BlockPool and BlockTable: who holds which block of the KV cache.

A block is a fixed run of cache slots. Every block is either held, by one or more tables, or free;
nothing else exists, and `check_integrity` proves it. The free list is also the prefix cache: a
freed block keeps its content and its digest until it is handed out again, the longest unused first,
so a later sequence with the same beginning takes it back.

A digest stands for a block's tokens and for everything before them; it starts from `cache_key`,
which names the weights. Only full, computed blocks get one, and a table's blocks are append-only,
so a shared block is never written. Where every layer of a model has a window, what has slid out of
it is given back early. Must not know tensors or sequences.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b


@dataclass(slots=True, eq=False)
class BlockTable:
    """A sequence's blocks in order, and the digests of those already published.

    The first num_unseen of them are given back: no later token sees what they held. In their place
    stands a block that is still held, so that whoever reads it by mistake reads numbers.
    """

    blocks: "array[int]" = field(default_factory=lambda: array("i"))
    digests: list[bytes] = field(default_factory=list)
    num_unseen: int = 0

    @property
    def held(self) -> "array[int]":
        """Return the blocks that are not given back."""
        return self.blocks[self.num_unseen :]


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Leading blocks that are cached; those that others hold take nothing from the pool."""

    num_blocks: int
    num_held: int


class BlockPool:
    """All blocks of one cache. The only place where blocks change hands."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        cache_key: bytes | None,
        window: int | None = None,
    ) -> None:
        """Start with every block free. Without a cache_key no block is ever shared.

        With a window, a token sees that many tokens, the last of which is itself; None: all.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._window = window
        self._cache_key = cache_key
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._num_holders = [0] * num_blocks
        self._digest_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}

    @property
    def shares_prefixes(self) -> bool:
        """Tell whether equal beginnings share blocks."""
        return self._cache_key is not None

    @property
    def forgets(self) -> bool:
        """Tell whether sequences give blocks back before they end."""
        return self._window is not None

    @property
    def num_free(self) -> int:
        """Count the blocks nobody holds, cached ones included."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Count the blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def most_held(self, num_tokens: int, num_at_once: int) -> int:
        """Count the blocks held at most on the way to num_tokens, in steps of num_at_once."""
        whole = self.blocks_for(num_tokens)
        if self._window is None:
            return whole
        # The window may begin within a block, and one full block is kept even if it is not seen.
        return min(whole, self.blocks_for(self._window + num_at_once) + 2)

    def grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Extend a table to hold num_tokens in all.

        False, and nothing changed, when blocks run out.
        """
        missing = self.blocks_for(num_tokens) - len(table.blocks)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            table.blocks.append(self._take_oldest())
        return True

    def release(self, table: BlockTable) -> None:
        """Give all blocks of a table back.

        Its end is reused before its beginning, which others may share.
        """
        for block in reversed(table.held):
            self._let_go(block)
        del table.blocks[:]
        table.digests.clear()
        table.num_unseen = 0

    def release_unseen(self, table: BlockTable, num_computed: int) -> None:
        """Give back the blocks of which no token after the first num_computed sees anything."""
        if self._window is None:
            return
        num_full = num_computed // self.block_size
        num_unseen = min((num_computed - self._window + 1) // self.block_size, num_full - 1)
        if num_unseen <= table.num_unseen:
            return
        for block in reversed(table.blocks[table.num_unseen : num_unseen]):
            self._let_go(block)
        table.blocks[:num_unseen] = array("i", [table.blocks[num_unseen]]) * num_unseen
        table.num_unseen = num_unseen

    def adopt_cached(self, table: BlockTable, token_ids: Sequence[int]) -> int:
        """Extend a table by cached blocks of the same tokens; return how many tokens it now holds.

        Call only when the table's blocks are all full and published. The last token is never
        adopted: it has to be computed, or there would be nothing to sample from.
        """
        if self._cache_key is None:
            return len(table.blocks) * self.block_size
        last_whole = (len(token_ids) - 1) // self.block_size
        for index in range(len(table.blocks), last_whole):
            digest = self._digest(table, token_ids, index)
            block = self._block_of.get(digest)
            if block is None:
                break
            self._hold(block)
            table.blocks.append(block)
            table.digests.append(digest)
        return len(table.blocks) * self.block_size

    def cached_prefix(self, token_ids: Sequence[int]) -> CachedPrefix:
        """Look up how much of these tokens is cached, without taking it."""
        num_cached = num_held = 0
        if self._cache_key is not None:
            probe = BlockTable()
            for index in range((len(token_ids) - 1) // self.block_size):
                digest = self._digest(probe, token_ids, index)
                block = self._block_of.get(digest)
                if block is None:
                    break
                probe.digests.append(digest)
                num_cached += 1
                num_held += self._num_holders[block] > 0
        return CachedPrefix(num_cached, num_held)

    def publish(self, table: BlockTable, token_ids: Sequence[int], num_computed: int) -> None:
        """Make a table's full computed blocks findable.

        A block whose twin is already known stays private.
        """
        if self._cache_key is None:
            return
        for index in range(len(table.digests), num_computed // self.block_size):
            digest = self._digest(table, token_ids, index)
            table.digests.append(digest)
            block = table.blocks[index]
            if digest not in self._block_of:
                self._block_of[digest] = block
                self._digest_of[block] = digest

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Assert that every block is either free or held by exactly the tables that list it."""
        held = [0] * self.num_blocks
        for table in tables:
            assert len(set(table.held)) == len(table.held), "a table lists a block twice"
            for block in table.held:
                held[block] += 1
        assert held == self._num_holders, "holders and tables disagree"
        free = {block for block, count in enumerate(held) if count == 0}
        assert free == set(self._free), "a block is both free and held, or neither"
        for digest, block in self._block_of.items():
            assert self._digest_of[block] == digest, "a digest points to another block"

    def _hold(self, block: int) -> None:
        if self._num_holders[block] == 0:
            del self._free[block]
        self._num_holders[block] += 1

    def _let_go(self, block: int) -> None:
        self._num_holders[block] -= 1
        if self._num_holders[block] == 0:
            self._free[block] = None
            if self._digest_of[block] is None:
                self._free.move_to_end(block, last=False)

    def _take_oldest(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._num_holders[block] = 1
        digest = self._digest_of[block]
        if digest is not None:
            self._digest_of[block] = None
            del self._block_of[digest]
        return block

    def _digest(self, table: BlockTable, token_ids: Sequence[int], index: int) -> bytes:
        parent = table.digests[index - 1] if index else (self._cache_key or b"")
        start = index * self.block_size
        content = array("q", token_ids[start : start + self.block_size])
        return blake2b(parent + content.tobytes(), digest_size=16).digest()
