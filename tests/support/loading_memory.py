"""How much memory loading takes: the peak above what the interpreter and its libraries hold.

Writes a model of zeros and loads it in this process, which must be a fresh one:

    python -m tests.support.loading_memory --layers 20     # 1.1 GB of weights
"""

import json
import tempfile
import threading
from pathlib import Path

import click
import torch
from safetensors.torch import save_file

from engine.config import EngineConfig, KernelChoice
from engine.loading import load_engine
from tests.support.tiny_model import TINY_LLAMA, write_byte_tokenizer

_VOCABULARY, _HIDDEN, _INNER, _KV = 16_384, 1_536, 4_096, 512


def write_large_model(folder: Path, num_layers: int) -> Path:
    """Write a Llama of zeros in half precision."""
    folder.mkdir(parents=True)
    sizes = {
        "vocab_size": _VOCABULARY,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 64,
    }
    (folder / "config.json").write_text(json.dumps(TINY_LLAMA | sizes))
    write_byte_tokenizer(folder)
    weights = {
        "model.embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        "lm_head.weight": (_VOCABULARY, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    for index in range(num_layers):
        prefix = f"model.layers.{index}."
        weights |= {
            prefix + "input_layernorm.weight": (_HIDDEN,),
            prefix + "self_attn.q_proj.weight": (_HIDDEN, _HIDDEN),
            prefix + "self_attn.k_proj.weight": (_KV, _HIDDEN),
            prefix + "self_attn.v_proj.weight": (_KV, _HIDDEN),
            prefix + "self_attn.o_proj.weight": (_HIDDEN, _HIDDEN),
            prefix + "post_attention_layernorm.weight": (_HIDDEN,),
            prefix + "mlp.gate_proj.weight": (_INNER, _HIDDEN),
            prefix + "mlp.up_proj.weight": (_INNER, _HIDDEN),
            prefix + "mlp.down_proj.weight": (_HIDDEN, _INNER),
        }
    tensors = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in weights.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def anonymous_bytes() -> int:
    """Return this process's own memory: what is not the page cache of a file."""
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    message = "the kernel does not tell"
    raise RuntimeError(message)


class PeakMemory:
    """Watches this process's memory from a thread."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)

    def __enter__(self) -> "PeakMemory":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._watcher.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.01):
            self.peak_bytes = max(self.peak_bytes, anonymous_bytes())


@click.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path), required=False)
@click.option("--layers", default=20, show_default=True, help="Of the model made, without FOLDER.")
def main(folder: Path | None, layers: int) -> None:
    """Print the peak of loading FOLDER as a multiple of its weights."""
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            folder = write_large_model(Path(made) / "model", layers)
        before_bytes = anonymous_bytes()
        config = EngineConfig(num_blocks=64, num_threads=1, kernels=KernelChoice.NATIVE)
        with PeakMemory() as memory:
            engine = load_engine(folder, config)
        weights_bytes = (folder / "model.safetensors").stat().st_size
        cache_bytes = 0 if engine.facts.memory is None else engine.facts.memory.cache_bytes
        peak_bytes = memory.peak_bytes - before_bytes
        click.echo(f"{weights_bytes / 1e6:.0f} MB of weights, {cache_bytes / 1e6:.0f} MB of cache")
        click.echo(f"{peak_bytes / weights_bytes:.3f}")


if __name__ == "__main__":
    main()
