"""An engine worker whose engine does nothing: what is left is the queue, Celery and our pool.

`python -m ops.bench.noop_worker`, with the settings of an engine worker.
"""

import json
import sys

import tokenizers
from tokenizers import models

from engine.plan import Capacity, Completion, StepOutput
from engine.sequence import FinishReason, Sequence
from engine.tokenizer import Tokenizer
from ops.logs import configure_logging
from ops.settings import Settings
from workers.engine_worker import LoadedModel, serve

MODEL = "noop"


class NoopEngine:
    """Ends every sequence at the next step, with nothing said."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sequences: dict[str, Sequence] = {}

    @property
    def has_work(self) -> bool:
        """Tell whether a sequence is here."""
        return bool(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence."""
        self._sequences[sequence.id] = sequence

    def abort(self, sequence_id: str) -> bool:
        """Drop a sequence."""
        return self._sequences.pop(sequence_id, None) is not None

    def step(self) -> StepOutput:
        """End them all."""
        finished = tuple(
            Completion(sequence_id, (), FinishReason.STOP, 1, 0, 0, 0)
            for sequence_id in self._sequences
        )
        self._sequences.clear()
        return StepOutput((), finished, (), len(finished), 0, 0, 0, 0.0)

    def capacity(self) -> Capacity:
        """Say that there is room."""
        running = len(self._sequences)
        return Capacity(self._slots - running, 1, 1, running, 0)


def word_tokenizer() -> Tokenizer:
    """Return a tokenizer to which every text is one unknown word."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))  # noqa: S106  a token of text
    return Tokenizer(json.dumps(json.loads(tokenizer.to_str())), None, {}, frozenset())


def main() -> int:
    """Serve until a signal."""
    settings = Settings()
    configure_logging("engine", settings.log_level)
    model = LoadedModel(MODEL, NoopEngine(settings.slots), word_tokenizer(), "noop")
    return serve(model, settings, "noop")


if __name__ == "__main__":
    sys.exit(main())
