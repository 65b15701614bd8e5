"""What may lie in a model folder, and what its files say about themselves.

Owns the names that may be read and the reading of their outer form: which files there are, JSON,
and the head of a weights file. Knows nothing of manifests, and loads no tensor: it must not import
torch.

Everything here is of somebody else's making. Pickles, Python files and archives can run code and
are refused by name, before anything is opened; links may not lead out of the folder.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from engine.errors import ModelFolderError, UnsupportedModelError, WeightsError

MANIFEST_NAME = "manifest.json"
CONFIG_NAME = "config.json"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"
WEIGHTS_SUFFIX = ".safetensors"
WEIGHTS_INDEX_NAME = "model.safetensors.index.json"

_READABLE_NAMES = frozenset(
    {
        CONFIG_NAME,
        TOKENIZER_NAME,
        TOKENIZER_CONFIG_NAME,
        CHAT_TEMPLATE_NAME,
        WEIGHTS_INDEX_NAME,
        "added_tokens.json",
        "generation_config.json",
        "merges.txt",
        "special_tokens_map.json",
        "vocab.json",
    }
)
# Found in downloaded folders and never read by us.
_DOCUMENT_STEMS = frozenset({"license", "notice", "readme", "use_policy"})
_DOCUMENT_SUFFIXES = frozenset({"", ".md", ".txt"})

_QUANTISED_SUFFIXES = (".weight_int8", ".weight_int4", ".weight_scales")  # engine/quantised.py
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


@dataclass(frozen=True, slots=True)
class StoredSizes:
    """How much a model's weights are: numbers of any type, and quantised ones with their scales."""

    num_plain: int
    quantised_bytes: int


class ForbiddenFileError(ModelFolderError):
    """A file or link of a kind that a model folder may not hold."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


class MissingFileError(ModelFolderError):
    """A file that every model needs, or that the manifest lists, is not there."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: missing from the model folder")
        self.name = name


class MalformedFileError(ModelFolderError):
    """A settings file whose content is not what its name promises."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


def readable_files(folder: Path) -> dict[str, Path]:
    """Return what may be read from `folder`, by name; refuse what may not even lie there.

    The manifest itself, documents and hidden entries are left out. Raises ForbiddenFileError, and
    MissingFileError when there is no such folder.
    """
    if not folder.is_dir():
        raise MissingFileError(str(folder))
    root = folder.resolve()
    readable: dict[str, Path] = {}
    for path in sorted(root.iterdir()):
        if path.name == MANIFEST_NAME or path.name.startswith(".") or _is_document(path):
            continue
        _check_kind(path, root)
        readable[path.name] = path
    return readable


def check_complete(paths: Mapping[str, Path]) -> None:
    """Raise MissingFileError unless config, tokenizer and all the weights are there."""
    for name in (CONFIG_NAME, TOKENIZER_NAME):
        if name not in paths:
            raise MissingFileError(name)
    if not weights_of(paths):
        raise MissingFileError(f"*{WEIGHTS_SUFFIX}")
    if WEIGHTS_INDEX_NAME in paths:
        weight_map = read_json(paths[WEIGHTS_INDEX_NAME]).get("weight_map")
        if not isinstance(weight_map, dict):
            raise MalformedFileError(WEIGHTS_INDEX_NAME, "has no weight_map")
        for name in sorted({str(name) for name in weight_map.values()} - paths.keys()):
            raise MissingFileError(name)


def weights_of(paths: Mapping[str, Path]) -> list[Path]:
    """Return the weights files among `paths`."""
    return [path for name, path in paths.items() if name.endswith(WEIGHTS_SUFFIX)]


# JSON of somebody else's making: what is in it is only known after looking, hence Any.
def read_json(path: Path) -> dict[str, Any]:
    """Read a settings file."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MalformedFileError(path.name, f"not JSON: {error}") from error
    if not isinstance(content, dict):
        raise MalformedFileError(path.name, "not a JSON object")
    return content


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json; refuse a model that needs code of its own, which is never run."""
    config = read_json(path)
    if "auto_map" in config:
        raise UnsupportedModelError(f"auto_map in {path.name} asks for the model's own code")
    return config


def stored_dtype(weights: Iterable[Path]) -> str:
    """Return the dtype of most elements; a config may claim another than the files hold.

    Of a quantised model, that of the weights which are not.
    """
    elements: Counter[str] = Counter()
    for tensor in _stored_tensors(weights):
        if not tensor.is_quantised:
            elements[tensor.dtype] += tensor.num_elements
    if not elements:
        raise WeightsError("the weights files hold no tensors")
    dtype = elements.most_common(1)[0][0]
    return _DTYPE_NAMES.get(dtype, dtype.lower())


def stored_sizes(weights: Iterable[Path]) -> StoredSizes:
    """Count what the files hold."""
    tensors = list(_stored_tensors(weights))
    return StoredSizes(
        num_plain=sum(tensor.num_elements for tensor in tensors if not tensor.is_quantised),
        quantised_bytes=sum(tensor.size_bytes for tensor in tensors if tensor.is_quantised),
    )


def chat_template(paths: Mapping[str, Path]) -> str | None:
    """Return the model's own chat template: that of its file, else of the tokenizer's settings."""
    if CHAT_TEMPLATE_NAME in paths:
        return paths[CHAT_TEMPLATE_NAME].read_text(encoding="utf-8")
    if TOKENIZER_CONFIG_NAME in paths:
        template = read_json(paths[TOKENIZER_CONFIG_NAME]).get("chat_template")
        return template if isinstance(template, str) else None
    return None


def _is_document(path: Path) -> bool:
    return path.stem.lower() in _DOCUMENT_STEMS and path.suffix.lower() in _DOCUMENT_SUFFIXES


def _check_kind(path: Path, root: Path) -> None:
    if not path.resolve().is_relative_to(root):
        raise ForbiddenFileError(path.name, "a link that leaves the folder; copy the file itself")
    if not path.is_file():
        raise ForbiddenFileError(path.name, "a model folder holds plain files only")
    if path.suffix != WEIGHTS_SUFFIX and path.name not in _READABLE_NAMES:
        raise ForbiddenFileError(
            path.name, "only safetensors weights and their known settings are read"
        )


@dataclass(frozen=True, slots=True)
class _StoredTensor:
    """One line of the table at a file's head."""

    dtype: str
    num_elements: int
    size_bytes: int
    is_quantised: bool


def _stored_tensors(weights: Iterable[Path]) -> Iterator[_StoredTensor]:
    for path in weights:
        for name, entry in _read_table(path).items():
            try:
                begin, end = (int(offset) for offset in entry["data_offsets"])
                yield _StoredTensor(
                    dtype=str(entry["dtype"]),
                    num_elements=prod(int(size) for size in entry["shape"]),
                    size_bytes=end - begin,
                    is_quantised=name.endswith(_QUANTISED_SUFFIXES),
                )
            except (ValueError, KeyError, TypeError) as error:
                raise WeightsError(f"{path.name}: not a safetensors header: {error}") from error


def _read_table(path: Path) -> dict[str, Any]:
    """Read the table at the file's head (safetensors README, Format)."""
    with path.open("rb") as stream:
        size_bytes = int.from_bytes(stream.read(8), "little")
        if not 2 <= size_bytes <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
            raise WeightsError(f"{path.name}: not a safetensors file")
        try:
            header = json.loads(stream.read(size_bytes))
        except (ValueError, RecursionError) as error:
            raise WeightsError(f"{path.name}: not a safetensors header: {error}") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{path.name}: not a safetensors header: not an object")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}
