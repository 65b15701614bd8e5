"""Model manifests: exactly which bytes a model folder holds and the limits that come with them.

Owns manifest.json and the rule about what a model folder may contain. Knows nothing of tensors,
devices, jobs or the network, and must not load torch: the API reads limits and digests here.

A manifest is made once, when a folder is registered, and compared with every byte of the folder
each time the folder is loaded. There is no quicker mode that trusts sizes or times: hashing is
cheap beside loading, and such a mode would miss the one case it is for. Nothing in a manifest
depends on when it was made, so equal folders have equal manifests.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

MANIFEST_NAME = "manifest.json"
WEIGHTS_SUFFIX = ".safetensors"
CONFIG_NAME = "config.json"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"
WEIGHTS_INDEX_NAME = "model.safetensors.index.json"

# Everything that may be read from a model folder besides weights. Pickles, Python files and
# archives are not data.
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
# Found in downloaded folders and never read by us: not hashed, so that editing a note does not stop
# a worker.
_DOCUMENT_STEMS = frozenset({"license", "notice", "readme", "use_policy"})
_DOCUMENT_SUFFIXES = frozenset({"", ".md", ".txt"})

_READ_BYTES = 1 << 20
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


class ModelFolderError(Exception):
    """A model folder that must not be loaded; the message names the file and what to do."""


class ManifestError(ModelFolderError):
    """No manifest, or one that is not a manifest of this format."""


class ModelConfigError(ModelFolderError):
    """A file whose content can't be accepted: config, tokenizer, weights header or index."""


class ForbiddenFileError(ModelFolderError):
    """A file or link of a kind that a model folder may not hold."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


class MissingFileError(ModelFolderError):
    """A file that the manifest lists, or that every model needs, is not there."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: missing from the model folder")
        self.name = name


class UnlistedFileError(ModelFolderError):
    """A readable file that the manifest does not list."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name}: not listed in {MANIFEST_NAME}; remove it or register the folder again"
        )
        self.name = name


class ChangedFileError(ModelFolderError):
    """A file whose bytes are not those that were registered."""

    def __init__(self, name: str, expected_sha256: str, found_sha256: str) -> None:
        super().__init__(f"{name}: sha256 is {found_sha256}, the manifest says {expected_sha256}")
        self.name = name
        self.expected_sha256 = expected_sha256
        self.found_sha256 = found_sha256


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the folder itself cannot tell about a model.

    Without a version the digest of its files is the version, so changed bytes can never pass under
    an old one.
    """

    name: str
    source: str = "unknown"
    licence: str = "unknown"
    version: str | None = None
    dependencies: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model folder."""

    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One immutable version of a model, as kept in manifest.json beside its files.

    `dtype` is that of the stored weights. `context_length` counts prompt and generated tokens
    together. `tokenizer_sha256` is of tokenizer.json, `chat_template_sha256` of the template's
    text; a model without a template takes plain prompts only. `dependencies` are the package
    versions the folder was made or registered with.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    format_version: int
    name: str
    version: str
    source: str
    licence: str
    architecture: str
    dtype: str
    context_length: int
    vocabulary_size: int
    tokenizer_sha256: str
    chat_template_sha256: str | None
    files: tuple[ModelFile, ...]
    dependencies: dict[str, str]

    @property
    def digest(self) -> str:
        """The sha256 over all files: equal exactly when two folders hold the same model."""
        return _digest(self.files)

    @property
    def weights(self) -> tuple[ModelFile, ...]:
        """The weight files, by name."""
        return tuple(file for file in self.files if file.name.endswith(WEIGHTS_SUFFIX))


FORMAT_VERSION = 1


def write_manifest(folder: Path, provenance: Provenance) -> Manifest:
    """Describe `folder` as it is now and write its manifest.json, replacing an older one."""
    manifest = describe(folder, provenance)
    # In one step: a reader sees the old manifest or the new one, never half of it.
    draft = folder / f".{MANIFEST_NAME}"
    draft.write_bytes(TypeAdapter(Manifest).dump_json(manifest, indent=2) + b"\n")
    draft.replace(folder / MANIFEST_NAME)
    return manifest


def describe(folder: Path, provenance: Provenance) -> Manifest:
    """Hash all of `folder` and return its manifest; raise ModelFolderError if it can't be served."""
    paths = _readable_files(folder)
    _require(paths)
    config = _read_json(paths[CONFIG_NAME])
    if "auto_map" in config:
        raise ModelConfigError(
            f"{CONFIG_NAME}: auto_map asks for the model's own code, which is never run"
        )
    files = tuple(_describe_file(path) for _, path in sorted(paths.items()))
    return Manifest(
        format_version=FORMAT_VERSION,
        name=provenance.name,
        version=provenance.version or _digest(files)[:12],
        source=provenance.source,
        licence=provenance.licence,
        architecture=_architecture(config),
        dtype=_stored_dtype(path for name, path in paths.items() if name.endswith(WEIGHTS_SUFFIX)),
        context_length=_positive_integer(config, "max_position_embeddings"),
        vocabulary_size=_positive_integer(config, "vocab_size"),
        tokenizer_sha256=next(file.sha256 for file in files if file.name == TOKENIZER_NAME),
        chat_template_sha256=_chat_template_sha256(paths),
        files=files,
        dependencies=provenance.dependencies or _installed_versions(),
    )


def load_manifest(folder: Path) -> Manifest:
    """Read the manifest of `folder` without looking at the other files."""
    path = folder / MANIFEST_NAME
    try:
        manifest = TypeAdapter(Manifest).validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError as error:
        raise ManifestError(f"{path}: no manifest; register the folder first") from error
    except ValidationError as error:
        raise ManifestError(f"{path}: not a manifest: {error}") from error
    if manifest.format_version != FORMAT_VERSION:
        raise ManifestError(
            f"{path}: format {manifest.format_version}, this version reads {FORMAT_VERSION}"
        )
    return manifest


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare every byte of `folder` with `manifest`; raise ModelFolderError at a difference."""
    paths = _readable_files(folder)
    listed = {file.name for file in manifest.files}
    for name in sorted(paths.keys() - listed):
        raise UnlistedFileError(name)
    for file in manifest.files:
        if file.name not in paths:
            raise MissingFileError(file.name)
        found = _describe_file(paths[file.name])
        if found != file:
            raise ChangedFileError(file.name, file.sha256, found.sha256)


def _readable_files(folder: Path) -> dict[str, Path]:
    """Return what may be read from `folder` by name; refuse what may not even lie there."""
    root = folder.resolve()
    if not root.is_dir():
        raise MissingFileError(str(folder))
    readable: dict[str, Path] = {}
    for path in sorted(root.iterdir()):
        if path.name.startswith(".") or path.name == MANIFEST_NAME or _is_document(path):
            continue
        if not path.resolve().is_relative_to(root):
            raise ForbiddenFileError(
                path.name, "a link that leaves the folder; copy the file itself"
            )
        if not path.is_file():
            raise ForbiddenFileError(path.name, "a model folder holds plain files only")
        if path.suffix != WEIGHTS_SUFFIX and path.name not in _READABLE_NAMES:
            raise ForbiddenFileError(
                path.name, "a model folder holds safetensors weights and their known settings only"
            )
        readable[path.name] = path
    return readable


def _is_document(path: Path) -> bool:
    return path.stem.lower() in _DOCUMENT_STEMS and path.suffix.lower() in _DOCUMENT_SUFFIXES


def _require(paths: dict[str, Path]) -> None:
    for name in (CONFIG_NAME, TOKENIZER_NAME):
        if name not in paths:
            raise MissingFileError(name)
    if not any(name.endswith(WEIGHTS_SUFFIX) for name in paths):
        raise MissingFileError(f"*{WEIGHTS_SUFFIX}")
    if WEIGHTS_INDEX_NAME in paths:
        weight_map = _read_json(paths[WEIGHTS_INDEX_NAME]).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelConfigError(f"{WEIGHTS_INDEX_NAME}: no weight_map")
        for name in sorted(set(weight_map.values()) - paths.keys()):
            raise MissingFileError(name)


def _describe_file(path: Path) -> ModelFile:
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("rb") as stream:
        while part := stream.read(_READ_BYTES):
            digest.update(part)
            size_bytes += len(part)
    return ModelFile(path.name, digest.hexdigest(), size_bytes)


def _digest(files: Iterable[ModelFile]) -> str:
    lines = sorted(f"{file.sha256}  {file.name}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# JSON of somebody else's making: what is in it is only known after looking, hence Any.
def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path.name}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelConfigError(f"{path.name}: not a JSON object")
    return content


def _architecture(config: dict[str, Any]) -> str:
    match config.get("architectures"):
        case [str(architecture)]:
            return architecture
        case _:
            raise ModelConfigError(
                f"{CONFIG_NAME}: architectures must name exactly one architecture"
            )


def _positive_integer(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise ModelConfigError(f"{CONFIG_NAME}: {key} must be a positive integer")
    return value


def _stored_dtype(weights: Iterable[Path]) -> str:
    """Return the dtype of most elements; a config may claim another than the files hold."""
    elements: Counter[str] = Counter()
    for path in weights:
        for tensor in _read_weights_header(path).values():
            elements[tensor["dtype"]] += prod(tensor["shape"])
    if not elements:
        raise ModelConfigError(f"*{WEIGHTS_SUFFIX}: no tensors")
    dtype = elements.most_common(1)[0][0]
    return _DTYPE_NAMES.get(dtype, dtype.lower())


def _read_weights_header(path: Path) -> dict[str, Any]:
    """Read the table of tensors at the head of a safetensors file (safetensors README, Format)."""
    with path.open("rb") as stream:
        size_bytes = int.from_bytes(stream.read(8), "little")
        if not 2 <= size_bytes <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
            raise ModelConfigError(f"{path.name}: not a safetensors file")
        try:
            header = json.loads(stream.read(size_bytes))
            return {
                name: {
                    "dtype": str(tensor["dtype"]),
                    "shape": [int(size) for size in tensor["shape"]],
                }
                for name, tensor in header.items()
                if name != "__metadata__"
            }
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise ModelConfigError(f"{path.name}: not a safetensors header: {error}") from error


def _chat_template_sha256(paths: dict[str, Path]) -> str | None:
    if CHAT_TEMPLATE_NAME in paths:
        return _describe_file(paths[CHAT_TEMPLATE_NAME]).sha256
    if TOKENIZER_CONFIG_NAME in paths:
        template = _read_json(paths[TOKENIZER_CONFIG_NAME]).get("chat_template")
        if isinstance(template, str):
            return hashlib.sha256(template.encode()).hexdigest()
    return None


def _installed_versions() -> dict[str, str]:
    """Return the versions of the packages that turn such a folder into tokens."""
    installed = {
        distribution.name: distribution.version for distribution in metadata.distributions()
    }
    return {
        name: installed[name]
        for name in ("safetensors", "tokenizers", "torch")
        if name in installed
    }
