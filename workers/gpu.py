"""Composition root of an engine worker on a model folder: checks it, loads it, warms it up."""

import gc
import os
from pathlib import Path

import structlog
import torch

from engine.config import CacheType, ComputeType, EngineConfig, KernelChoice
from engine.loading import load_engine
from engine.registry import load_manifest, verify
from engine.sequence import SamplingParams, Sequence
from engine.tokenizer import Tokenizer
from ops.logs import Event, configure_logging
from ops.settings import Settings
from workers.engine_worker import LoadedModel, serve

_WARM_UP_TEXT = "The quick brown fox"


def run_engine_worker(settings: Settings, folder: Path, name: str | None = None) -> int:
    """Serve one model folder until a signal; return the exit status."""
    configure_logging("engine", settings.log_level)
    log = structlog.stdlib.get_logger(__name__)
    manifest = load_manifest(folder)
    verify(folder, manifest)
    tokenizer = Tokenizer.load(folder)
    engine = load_engine(folder, _engine_config(settings))
    facts = engine.facts
    digest = f"{manifest.digest} {facts.dtype} {facts.kv_dtype} {facts.kernels}"
    model = LoadedModel(manifest.name, engine, tokenizer, digest, manifest.pooling, facts)
    _warm_up(model)
    gc.collect()
    gc.freeze()  # what a model is made of lives as long as the process: never look through it again
    log.info(
        Event.MODEL_LOADED,
        model=model.name,
        num_blocks=engine.capacity().total_blocks,
        kernels=facts.kernels,
        dtype=facts.dtype,
        weights=facts.weights,
        kv_dtype=facts.kv_dtype,
        num_graphs=0 if facts.graphs is None else len(facts.graphs.row_counts),
        graphs_s=0.0 if facts.graphs is None else round(facts.graphs.seconds, 3),
    )
    return serve(model, settings, name)


def _engine_config(settings: Settings) -> EngineConfig:
    return EngineConfig(
        block_size=settings.block_size,
        num_blocks=settings.kv_blocks,
        memory_budget_bytes=round(settings.memory_fraction * _available_bytes(settings.device)),
        max_sequences=settings.slots,
        max_step_tokens=settings.step_tokens,
        dtype=ComputeType(settings.dtype),
        kv_dtype=CacheType(settings.kv_dtype),
        device=settings.device,
        kernels=KernelChoice(settings.kernels),
        graphs=settings.cuda_graphs,
        num_threads=settings.engine_threads,
    )


def _available_bytes(device: str) -> int:
    """Return the memory that can be had; on Linux the page cache counts, since it gives way."""
    if device == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info()
        return free_bytes
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _warm_up(model: LoadedModel) -> None:
    """Run one known prompt, so that the first job does not pay for what is made lazily."""
    prompt_ids = model.tokenizer.encode(_WARM_UP_TEXT)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True)
    model.engine.add(Sequence("warm-up", prompt_ids, sampling))
    num_tokens = 0
    while model.engine.has_work:
        num_tokens += len(model.engine.step().tokens)
    assert num_tokens == 4, "the model does not answer"
