"""quantise_folder: a model folder becomes one with rounded linear layers.

Owns the order of work, layer by layer: see what goes into each linear layer when the model reads
typical text, smooth or not, round, and let the next layer see what the rounded one makes of it.
int8 layers compute with bytes of activations, which needs smoothing; int4 leaves activations alone.
An int4 model is rounded, keeps in int8 what costs too much, is rounded again with that in place,
and learns what is left.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import log1p
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.calibration import LayerwiseRun
from engine.distance import load_full
from engine.errors import RiseTargetError, UnsupportedModelError
from engine.folder import CONFIG_NAME, WEIGHTS_INDEX_NAME, read_config, readable_files, weights_of
from engine.layer_files import LayerFiles
from engine.layer_parts import Place
from engine.layer_tensors import LayerTensors, RoundedLayer
from engine.learning import learn_rounding
from engine.model import stored_linear
from engine.model.config import ModelConfig, Quantisation, Scheme
from engine.model.families import QUANT_METHOD, read_model_config
from engine.model.stored_linear import Part
from engine.model.weights import EditedWeights, WeightFiles, open_weights
from engine.quantised import QuantisedWeight
from engine.rounding import round_int4, round_int8
from engine.sensitivity import choose_kept, measure_sensitivities
from engine.smoothing import smooth

_CPU = torch.device("cpu")
WEIGHTS_NAME = "model.safetensors"
_NUM_WATCHED = 48  # texts that are enough to know a layer's inputs by
_NUM_TRIED = 3  # texts that are enough to know what a layer's rounding costs: the last ones


@dataclass(frozen=True, slots=True)
class Lessons:
    """What a rounded model is held to.

    Texts are token ids. For int4, max_rise is by which share perplexity may rise, None as far as it
    likes; how long the model learns is num_steps.
    """

    texts: list[list[int]]
    num_steps: int
    max_rise: float | None


def read_quantisable(source: Path) -> ModelConfig:
    """Return the configuration of a model that can be quantised; raise ModelFolderError if not."""
    config = read_model_config(source)
    if config.quantisation is not None:
        raise UnsupportedModelError("the model is quantised already")
    if config.has_experts:
        raise UnsupportedModelError("quantising a model of experts")
    return config


@torch.no_grad()
def quantise_folder(
    source: Path, target: Path, quantisation: Quantisation, lessons: Lessons
) -> None:
    """Write a quantised copy of a model folder, without a manifest.

    Raise ModelFolderError when the source does not do, RiseTargetError when no layer could be int4.
    A copy that was not finished has no config.json.
    """
    config = read_quantisable(source)
    target.mkdir(parents=True)
    everywhere = frozenset(
        Place(layer, part) for layer in range(config.num_layers) for part in Part
    )
    with open_weights(source, _CPU) as files:
        rounding = _Rounding(files, config, quantisation)
        texts = lessons.texts[:_NUM_WATCHED]
        match quantisation.scheme:
            case Scheme.INT8:
                layers = rounding.run(texts, in_bytes=everywhere)
            case Scheme.INT4:
                kept = _choose_kept(source, rounding, lessons)
                if kept == everywhere:
                    raise RiseTargetError
                quantisation = replace(quantisation, kept_in_int8=_names(config, kept))
                layers = _learn(source, rounding.run(texts, in_bytes=kept), lessons)
        save_file(rounding.edited(layers).all(), target / WEIGHTS_NAME)
    _copy_the_rest(source, target, quantisation)


class _Rounding:
    """Rounds one model, as often as is wanted; its files stay as they are."""

    def __init__(self, files: WeightFiles, config: ModelConfig, quantisation: Quantisation) -> None:
        self._files = files
        self._config = config
        self._quantisation = quantisation

    def run(self, texts: list[list[int]], in_bytes: Set[Place]) -> list[RoundedLayer]:
        """Round all layers, one after the other, some of their parts to bytes."""
        edited = EditedWeights(self._files)
        run = LayerwiseRun(edited, self._read_as(in_bytes), texts)
        rounded = []
        for index in range(self._config.num_layers):
            layer = LayerFiles(edited, self._config, index)
            tensors, inputs = layer.read(), run.watch(index)
            parts = {place.part for place in in_bytes if place.layer == index}
            with _one_thread():
                rounded.append(self._round_layer(tensors, inputs, parts))
            layer.write(rounded[index])
            run.advance(index)
        return rounded

    def edited(self, layers: Sequence[RoundedLayer]) -> EditedWeights:
        """Return the model's weights with these layers in place."""
        edited = EditedWeights(self._files)
        for index, layer in enumerate(layers):
            LayerFiles(edited, self._config, index).write(layer)
        return edited

    def _read_as(self, in_bytes: Set[Place]) -> ModelConfig:
        names = _names(self._config, in_bytes)
        return replace(self._config, quantisation=replace(self._quantisation, kept_in_int8=names))

    def _round_layer(
        self, tensors: LayerTensors, inputs: Mapping[Part, torch.Tensor], in_bytes: Set[Part]
    ) -> RoundedLayer:
        """Round a layer's weights, after smoothing what goes into those that become bytes."""
        smooth(tensors, inputs, in_bytes, self._config)
        weights = {
            part: round_int8(weight) if part in in_bytes else self._round_int4(weight, inputs[part])
            for part, weight in tensors.linears.items()
        }
        return RoundedLayer(tensors, weights)

    def _round_int4(self, weight: torch.Tensor, rows: torch.Tensor) -> QuantisedWeight:
        assert self._quantisation.group_size is not None, "int4 has groups"
        return round_int4(weight, rows, self._quantisation.group_size)


def _choose_kept(source: Path, rounding: _Rounding, lessons: Lessons) -> frozenset[Place]:
    """Choose what stays in int8, so that rounding alone keeps to the rise that is allowed.

    What learning takes back afterwards is margin: for what bytes cost, and for other text.
    """
    if lessons.max_rise is None:
        return frozenset()
    tried = rounding.run(lessons.texts[:_NUM_WATCHED], in_bytes=frozenset())
    texts = lessons.texts[-_NUM_TRIED:]  # rounding knows the first by heart, where it costs less
    sensitivities = measure_sensitivities(
        load_full(source, torch.float32, max(map(len, texts))),
        read_model_config(source),
        [layer.weights for layer in tried],
        texts,
    )
    return choose_kept(sensitivities, log1p(lessons.max_rise))


def _learn(source: Path, layers: Sequence[RoundedLayer], lessons: Lessons) -> list[RoundedLayer]:
    full = load_full(source, torch.bfloat16, max(map(len, lessons.texts)))
    config = read_model_config(source)
    return learn_rounding(full, config, layers, lessons.texts, lessons.num_steps)


def _names(config: ModelConfig, places: Set[Place]) -> tuple[str, ...]:
    """Name linear layers as files do, those of a fused one each by itself."""
    return tuple(
        name
        for place in sorted(places)
        for name in stored_linear.parts_of(config, place.layer)[place.part].names
    )


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
