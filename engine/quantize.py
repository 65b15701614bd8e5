"""quantise_folder: a model folder becomes one with rounded linear layers.

Owns the order of work, layer by layer: see what goes into each linear layer when the model reads
typical text, smooth or not, round, and let the next layer see what the rounded one makes of it.
int8 layers compute with bytes of activations, which needs smoothing; int4 leaves activations alone,
and its rounding is learned further when all layers are rounded.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.calibration import LayerwiseRun
from engine.errors import UnsupportedModelError
from engine.folder import CONFIG_NAME, WEIGHTS_INDEX_NAME, read_config, readable_files, weights_of
from engine.learning import LearningKernels, learn_rounding
from engine.model import stored_linear
from engine.model.build import Placement, load_decoder_weights
from engine.model.config import ModelConfig, Quantisation, Scheme
from engine.model.families import QUANT_METHOD, read_model_config
from engine.model.stored_linear import Part, StoredLinear
from engine.model.weights import EditedWeights, open_weights, take_fused
from engine.quantised import SCALES_SUFFIX, SUFFIXES, QuantisedWeight
from engine.rounding import round_int4, round_int8
from engine.smoothing import LayerTensors, smooth

_CPU = torch.device("cpu")
WEIGHTS_NAME = "model.safetensors"
_NUM_WATCHED = 48  # texts that are enough to know a layer's inputs by


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a rounded model is held to: texts, as token ids, and for int4 how long it learns."""

    texts: list[list[int]]
    num_steps: int


@torch.no_grad()
def quantise_folder(
    source: Path, target: Path, quantisation: Quantisation, lessons: Lessons
) -> None:
    """Write a quantised copy of a model folder, without a manifest.

    Raise ModelFolderError when the source does not do. A copy that was not finished has no
    config.json.
    """
    config = read_model_config(source)
    if config.quantisation is not None:
        raise UnsupportedModelError("the model is quantised already")
    target.mkdir(parents=True)
    with open_weights(source, _CPU) as files:
        edited = EditedWeights(files)
        texts = lessons.texts[:_NUM_WATCHED]
        run = LayerwiseRun(edited, replace(config, quantisation=quantisation), texts)
        rounded = []
        for index in range(config.num_layers):
            layer = _Layer(edited, config, index)
            tensors = layer.read()
            inputs = run.watch(index)
            with _one_thread():
                rounded.append(_round_layer(tensors, inputs, quantisation, config))
            layer.write(tensors, rounded[index])
            run.advance(index)
        if quantisation.scheme is Scheme.INT4:
            _learn(source, edited, rounded, lessons)
        save_file(edited.all(), target / WEIGHTS_NAME)
    _copy_the_rest(source, target, quantisation)


class _Layer:
    """One layer's tensors, as they lie in files under the names of their parts."""

    def __init__(self, weights: EditedWeights, config: ModelConfig, index: int) -> None:
        self._weights = weights
        self._config = config
        self._index = index
        self._parts = stored_linear.parts_of(config, index)

    def read(self) -> LayerTensors:
        """Read all that may be changed."""
        norms, qkv = self._config.norms, self._parts[Part.QKV]
        return LayerTensors(
            linears={
                part: take_fused(self._weights, stored, "weight", torch.float32, stored.num_in)
                for part, stored in self._parts.items()
            },
            qkv_bias=(
                take_fused(self._weights, qkv, "bias", torch.float32) if qkv.has_bias else None
            ),
            norm_before_attention=self._read_norm(norms.before_attention),
            norm_before_feed_forward=self._read_norm(norms.before_feed_forward),
        )

    def write(self, tensors: LayerTensors, rounded: Mapping[Part, QuantisedWeight]) -> None:
        """Put back norms and bias, and rounded weights in the place of the others."""
        norms = self._config.norms
        self._write_norm(norms.before_attention, tensors.norm_before_attention)
        self._write_norm(norms.before_feed_forward, tensors.norm_before_feed_forward)
        if tensors.qkv_bias is not None:
            self._write_parts(self._parts[Part.QKV], "bias", tensors.qkv_bias)
        for part, weight in rounded.items():
            stored = self._parts[part]
            self._write_parts(stored, SUFFIXES[weight.scheme], weight.values)
            self._write_parts(stored, SCALES_SUFFIX, weight.scales)
            for name in stored.names:
                self._weights.remove(f"{name}.weight")

    def _write_parts(self, stored: StoredLinear, suffix: str, fused: torch.Tensor) -> None:
        for name, part in zip(stored.names, torch.split(fused, list(stored.num_outs)), strict=True):
            self._weights.replace(f"{name}.{suffix}", part)

    def _read_norm(self, name: str | None) -> torch.Tensor | None:
        if name is None:
            return None
        shape = (self._config.hidden_size,)
        stored = self._weights.take(self._norm_name(name), shape, torch.float32)
        return stored + self._config.norm_offset

    def _write_norm(self, name: str | None, norm: torch.Tensor | None) -> None:
        if name is not None and norm is not None:
            self._weights.replace(self._norm_name(name), norm - self._config.norm_offset)

    def _norm_name(self, name: str) -> str:
        return f"model.layers.{self._index}.{name}.weight"


def _round_layer(
    tensors: LayerTensors,
    inputs: Mapping[Part, torch.Tensor],
    quantisation: Quantisation,
    config: ModelConfig,
) -> dict[Part, QuantisedWeight]:
    """Round a layer's weights; for int8, smooth all its tensors first."""
    match quantisation.scheme:
        case Scheme.INT8:
            smooth(tensors, inputs, config)
            return {part: round_int8(weight) for part, weight in tensors.linears.items()}
        case Scheme.INT4:
            assert quantisation.group_size is not None, "int4 has groups"
            return {
                part: round_int4(weight, inputs[part], quantisation.group_size)
                for part, weight in tensors.linears.items()
            }


def _learn(
    source: Path,
    edited: EditedWeights,
    rounded: list[dict[Part, QuantisedWeight]],
    lessons: Lessons,
) -> None:
    """Replace rounded layers by learned ones."""
    config = read_model_config(source)
    longest = max(len(text) for text in lessons.texts)
    placement = Placement(torch.bfloat16, _CPU, longest)
    full = load_decoder_weights(source, config, LearningKernels(), placement)
    learned = learn_rounding(full, config, rounded, lessons.texts, lessons.num_steps)
    for index, layer in enumerate(learned):
        norms = layer.norm_before_attention, layer.norm_before_feed_forward
        _Layer(edited, config, index).write(LayerTensors({}, None, *norms), layer.weights)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let tensors be computed by one thread: for many small ones, waiting costs more than it gains.

    Rounding 960 x 576 took 2.9 s of processor time with two threads on a busy machine, 0.1 s so.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def _copy_the_rest(source: Path, target: Path, quantisation: Quantisation) -> None:
    files = readable_files(source)
    left_out = {path.name for path in weights_of(files)} | {CONFIG_NAME, WEIGHTS_INDEX_NAME}
    for name, path in files.items():
        if name not in left_out:
            shutil.copyfile(path, target / name)
    config = read_config(source / CONFIG_NAME)
    config["quantization_config"] = {"quant_method": QUANT_METHOD, **asdict(quantisation)}
    (target / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
