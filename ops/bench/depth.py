"""`make bench-depth`: step costs, open-loop latency, the prefix cache, and the soak, of our engine.

Owns what is asked and how it is written down; each is measured by a program of its own.
"""

from ops.bench.bench import Bench
from ops.bench.concurrency import CONCURRENCIES, requests_for
from ops.bench.estimates import growth, percentile, percentile_interval
from ops.bench.peers import ours
from ops.bench.shared_prefix import NUM_REQUESTS, NUM_SHARED, shared_prefix_requests
from ops.bench.tables import interval, milliseconds, table

_LOADS = (0.5, 0.8)
_PERCENTILES = (50, 95, 99)


def concurrency_section(bench: Bench, dtype: str) -> str:
    """Measure throughput against concurrency."""
    rows = []
    for in_flight in CONCURRENCIES:
        run = bench.run(ours(dtype, in_flight), requests_for(bench.requests, in_flight))
        memory = f"{run.peak_memory_bytes / 2**20:.0f}"
        rows.append([f"{in_flight}", f"{run.outcome.output_rate:.0f}", memory])
    return table(["in flight", "output tok/s", "peak MiB"], rows)


def steps_section(bench: Bench, dtype: str) -> str:
    """Measure a decode step against batch size, context length and waiting requests."""
    costs = bench.measure_ours("step_costs", {"dtype": dtype}, [], in_flight=1)
    sections = [
        _costs("batch size, at a context of 160", costs["by_batch"]),
        _costs("context length, 8 sequences", costs["by_context"]),
        _costs("waiting requests, 64 sequences running", costs["by_waiting"]),
    ]
    return "\n\n".join(sections)


def latency_section(bench: Bench, dtype: str, num_requests: int) -> str:
    """Measure latencies at parts of the capacity that a burst shows just before."""
    capacity = bench.run(ours(dtype), bench.requests).outcome.request_rate
    rows = []
    for load in _LOADS:
        settings = {"dtype": dtype, "rate": f"{load * capacity}", "seed": "1"}
        settings["num_requests"] = f"{num_requests}"
        found = bench.measure_ours("open_loop", settings, bench.requests, in_flight=32)
        for name in ("first_token_s", "whole_s"):
            cells = [interval(percentile_interval(found[name], part)) for part in _PERCENTILES]
            words = "first token" if name == "first_token_s" else "whole answer"
            rows.append([f"{load:.0%}", words, *cells, f"{found['max_waiting']}"])
    return "\n\n".join(
        [
            f"Poisson arrivals, {num_requests} requests, capacity {capacity:.2f} requests/s (a"
            " burst of the workload, 32 in flight). Seconds, with bootstrap intervals of 95%.",
            table(["load", "until", "p50", "p95", "p99", "longest queue"], rows),
        ]
    )


def prefix_section(bench: Bench, dtype: str) -> str:
    """Measure the first tokens of requests that share a system prompt, with and without cache."""
    requests = shared_prefix_requests(bench.requests)
    rows = []
    for at_once in (1, NUM_REQUESTS):
        seconds = {}
        for choice in ("on", "off"):
            settings = {"dtype": dtype, "prefix_caching": choice, "at_once": f"{at_once}"}
            found = bench.measure_ours("shared_prefix", settings, requests, in_flight=64)
            seconds[choice] = percentile(found["first_token_s"], 50)
        ratio = f"{seconds['off'] / seconds['on']:.1f}"
        come = "one after another" if at_once == 1 else "all at once"
        rows.append([come, milliseconds(seconds["off"]), milliseconds(seconds["on"]), ratio])
    return "\n\n".join(
        [
            f"{NUM_REQUESTS} requests that share {NUM_SHARED} tokens; median ms to first token.",
            table(["requests come", "without cache", "with cache", "ratio"], rows),
        ]
    )


def soak_section(bench: Bench, num_requests: int) -> str:
    """Run random requests with aborts; tell whether memory grew and blocks were lost."""
    settings = {"num_requests": f"{num_requests}", "seed": "1"}
    found = bench.measure_ours("soak", settings, [], in_flight=1)
    trace = [size / 2**20 for size in found["resident_bytes"]]
    middle = trace[len(trace) // 2]
    return "\n".join(
        [
            f"- {found['num_finished']} finished, {found['num_aborted']} aborted,"
            f" {found['num_preempted']} preempted",
            f"- resident MiB: {trace[0]:.1f} early on, {middle:.1f} half way, {trace[-1]:.1f} at"
            " the end",
            f"- blocks missing at the end: {found['num_blocks_missing']}",
        ]
    )


def _costs(what: str, costs: list[dict[str, float]]) -> str:
    rows = []
    for before, cost in zip([None, *costs], costs, strict=False):
        exponent = ""
        if before is not None and before["size"] > 0:
            points = [(each["size"], each["step_s"]) for each in (before, cost)]
            exponent = f"{growth(*points):.2f}"
        size = f"{cost['size']}"
        rows.append([size, milliseconds(cost["step_s"]), exponent, milliseconds(cost["add_s"])])
    return table([what, "step ms", "growth (2 is quadratic)", "ms to add a request"], rows)
