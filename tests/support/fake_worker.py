"""An engine worker on the fake model: `python -m tests.support.fake_worker NAME STEP_MS`.

All else is the real thing, settings included. Its last line of output says whether all KV blocks
came back.
"""

import json
import sys

from ops.logs import configure_logging
from ops.settings import Settings
from tests.support.fake_engine import byte_tokenizer, fake_engine
from tests.support.jobs import MODEL
from workers.engine_worker import LoadedModel, serve


def main() -> int:
    """Serve until a signal; return the exit status."""
    name, step_ms = sys.argv[1:]
    settings = Settings()
    configure_logging("engine", settings.log_level)
    engine = fake_engine(settings, float(step_ms) / 1000)
    status = serve(LoadedModel(MODEL, engine, byte_tokenizer(), "fake"), settings, name)
    engine.check_integrity()
    capacity = engine.capacity()
    lost_blocks = capacity.total_blocks - capacity.free_blocks
    print(json.dumps({"event": "blocks counted", "num_lost": lost_blocks}), flush=True)  # noqa: T201
    return status


if __name__ == "__main__":
    sys.exit(main())
