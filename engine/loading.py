"""load_engine: a model folder becomes a running Engine.

The engine's composition root: the only place that decides which parts an engine is made of. Takes a
folder that engine/registry.py has checked; reads no manifest itself.
"""

import hashlib
import secrets
from pathlib import Path

import torch

from engine.admission import AdmissionEstimate
from engine.blocks import BlockPool
from engine.config import CacheType, ComputeType, EngineConfig
from engine.engine import Engine, EngineFacts, EngineLimits
from engine.folder import readable_files, stored_dtype, stored_sizes, weights_of
from engine.graphs import CudaRecorder, GraphedModel, graph_sizes
from engine.kernels.choice import choose_kernels
from engine.kernels.interface import Kernels
from engine.kernels.native import NativeKernels, NativeModel
from engine.kv_cache import CacheFormat, KvCache
from engine.memory import plan_memory
from engine.model.build import Placement, load_decoder_weights
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.families import read_model_config
from engine.pooling import Pooler
from engine.runner import ModelRunner
from engine.sampler import Sampler
from engine.scheduler import Scheduler, StepLimits
from engine.step_buffers import Padding, StepBuffers, StepSizes

_DTYPES = {ComputeType.FLOAT32: torch.float32, ComputeType.BFLOAT16: torch.bfloat16}


def load_engine(folder: Path, config: EngineConfig) -> Engine[torch.Tensor]:
    """Load a model and lay out its cache.

    Raise ModelFolderError when the folder or the budget does not do.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = torch.device(config.device)
    dtype = compute_dtype(folder, config)
    model = read_model_config(folder)
    max_context = min(config.max_context or model.max_context, model.max_context)
    kv_dtype = cache_dtype(config, dtype)
    sizes = StepSizes(
        num_tokens=config.max_step_tokens,
        num_sequences=config.max_sequences,
        blocks_per_sequence=-(-max_context // config.block_size),
    )
    kernels = choose_kernels(config, dtype, device, sizes)
    weights_bytes = _weights_bytes(folder, model, kernels, dtype)
    memory = plan_memory(model, config, weights_bytes, dtype, kv_dtype)
    weights = load_decoder_weights(folder, model, kernels, Placement(dtype, device, max_context))
    padding = None
    # Which experts a step needs is read back from the device, and a graph can't wait for that.
    if config.graphs and kernels.is_recordable and not model.has_experts:
        padding = Padding(graph_sizes(config.max_sequences), block=memory.num_blocks)
    cache = KvCache(
        model,
        memory.num_blocks + (0 if padding is None else 1),
        CacheFormat(config.block_size, kv_dtype, kernels.cache_layout),
        device,
    )
    buffers = StepBuffers(sizes, config.block_size, device, padding)
    decoder = Decoder(weights, kernels, cache)
    network: Decoder | NativeModel | GraphedModel = decoder
    if isinstance(kernels, NativeKernels):
        network = NativeModel(decoder, kernels, buffers)
    elif padding is not None:
        network = GraphedModel(decoder, buffers, padding, CudaRecorder())

    cache_key = _cache_key(folder, kv_dtype) if config.prefix_caching else None
    pool = BlockPool(memory.num_blocks, config.block_size, cache_key=cache_key, window=model.window)
    scheduler = Scheduler(
        pool,
        StepLimits(config.max_sequences, config.max_step_tokens),
        AdmissionEstimate(config.expected_output_share),
        model.eos_token_ids,
    )
    return Engine(
        scheduler,
        ModelRunner(network, buffers),
        Sampler(network, draw_seed=lambda: secrets.randbits(63)),
        Pooler(),
        EngineLimits(
            vocab_size=model.vocab_size,
            max_context=max_context,
            max_sequences=config.max_sequences,
            num_blocks=memory.num_blocks,
            block_size=config.block_size,
        ),
        EngineFacts(
            kernels=kernels.name,
            dtype=_name_of(dtype),
            weights=model.quantisation.summary if model.quantisation else _name_of(dtype),
            kv_dtype=_name_of(kv_dtype),
            memory=memory,
            step_seconds=kernels.seconds if isinstance(kernels, NativeKernels) else None,
            graphs=network.cost if isinstance(network, GraphedModel) else None,
        ),
    )


def compute_dtype(folder: Path, config: EngineConfig) -> torch.dtype:
    """Return the type of activations and of all weights that are not quantised."""
    if config.dtype is not ComputeType.AUTO:
        return _DTYPES[config.dtype]
    stored = stored_dtype(weights_of(readable_files(folder)))
    return torch.bfloat16 if stored == "bfloat16" else torch.float32


def cache_dtype(config: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    """Return the type of cached keys and values beside activations of this type."""
    return torch.int8 if config.kv_dtype is CacheType.INT8 else dtype


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _weights_bytes(folder: Path, model: ModelConfig, kernels: Kernels, dtype: torch.dtype) -> int:
    """Count the weights as they will be held: a tied embedding twice where it can't be shared."""
    sizes = stored_sizes(weights_of(readable_files(folder)))
    is_copied = model.ties_embeddings and not kernels.shares_tables
    num_copied = model.vocab_size * model.hidden_size if is_copied else 0
    return (sizes.num_plain + num_copied) * dtype.itemsize + sizes.quantised_bytes


def _cache_key(folder: Path, kv_dtype: torch.dtype) -> bytes:
    """Name the weights and the cache's type, for cached prefixes.

    A file's head lists every tensor, its size and time tell versions apart.
    """
    digest = hashlib.blake2b(str(kv_dtype).encode(), digest_size=16)
    for path in weights_of(readable_files(folder)):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.digest()
