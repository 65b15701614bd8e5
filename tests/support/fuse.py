"""A fuse that ends a tick before its n-th effect, as a kill does: nothing after it happens.

An effect is a command to the store or a change of the disk that others can see. They are counted
where they leave the process, so no effect can be forgotten, and none need be named in the code.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

_DISK_EFFECTS = ("fsync", "replace", "unlink", "mkdir", "rmdir")


class Killed(BaseException):
    """The process is gone; nothing may catch this."""


class Fuse:
    """Burns with each effect; without a limit it only counts."""

    def __init__(self) -> None:
        self.num_burnt = 0
        self._limit: int | None = None

    def set(self, limit: int | None) -> None:
        """Allow `limit` effects from now on."""
        self.num_burnt = 0
        self._limit = limit

    def allow(self, number: int = 1) -> int:
        """Return how many of the next effects may still happen."""
        left = number if self._limit is None else max(0, self._limit - self.num_burnt)
        allowed = min(number, left)
        self.num_burnt += allowed
        return allowed

    def burn(self) -> None:
        if self.allow() == 0:
            raise Killed


class FusedPipeline(redis.client.Pipeline):
    """A pipeline of which the server may get the first commands only."""

    fuse: Fuse
    is_transaction: bool

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        num_commands = len(self.command_stack)
        allowed = self.fuse.allow(num_commands)
        if allowed == num_commands:
            return super().execute(raise_on_error)
        # Of a transaction the server takes all or nothing.
        if not self.is_transaction:
            self.command_stack = self.command_stack[:allowed]
            super().execute(raise_on_error)
        raise Killed


class FusedRedis(redis.Redis):
    """A client whose commands burn the fuse."""

    fuse: Fuse

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.fuse.burn()
        return super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> FusedPipeline:
        pipeline = FusedPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )
        pipeline.fuse = self.fuse
        pipeline.is_transaction = transaction
        return pipeline


def fused_client(url: str, fuse: Fuse) -> FusedRedis:
    client = FusedRedis.from_url(url, decode_responses=True)
    assert isinstance(client, FusedRedis)
    client.fuse = fuse
    return client


@contextmanager
def fused_disk(fuse: Fuse) -> Iterator[None]:
    """Make the changes of the disk inside the block burn the fuse."""

    def burning(effect: Callable[..., Any]) -> Callable[..., Any]:
        def burn_first(*args: Any, **options: Any) -> Any:
            fuse.burn()
            return effect(*args, **options)

        return burn_first

    with pytest.MonkeyPatch.context() as patch:
        for name in _DISK_EFFECTS:
            patch.setattr(os, name, burning(getattr(os, name)))
        yield
