from prometheus_client import CollectorRegistry

from engine.engine import EngineFacts
from engine.plan import Capacity
from workers.observer import EngineObserver


def test_the_metrics_say_what_a_model_runs_on():
    registry = CollectorRegistry()
    observer = EngineObserver(registry, "small", "w1", lambda: Capacity(1, 1, 1, 0, 0))

    observer.loaded(
        EngineFacts(kernels="triton", dtype="bfloat16", weights="int4", kv_dtype="int8")
    )

    types = {"dtype": "bfloat16", "weights": "int4", "kv_dtype": "int8"}
    labels = {"worker": "w1", "model": "small", "kernels": "triton"} | types
    sample = registry.get_sample_value("promptmill_model_info", labels)
    assert sample == 1.0
