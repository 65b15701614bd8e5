"""Model manifests: exactly which bytes a model folder holds and the limits that come with them.

Owns manifest.json. Knows nothing of tensors, devices, jobs or the network, and must not load torch:
the API reads limits and digests here.

A manifest is made once, when a folder is registered, and compared with every byte of the folder
each time the folder is loaded. There is no quicker mode that trusts sizes or times: hashing is
cheap beside loading, and such a mode would miss the one case it is for. Nothing in a manifest
depends on when it was made: equal folders have equal manifests.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from engine.errors import ModelFolderError
from engine.folder import (
    CONFIG_NAME,
    MANIFEST_NAME,
    TOKENIZER_NAME,
    MalformedFileError,
    MissingFileError,
    chat_template,
    check_complete,
    read_config,
    readable_files,
    stored_dtype,
    weights_of,
)
from engine.model.config import Quantisation, Scheme
from engine.sequence import Pooling

FORMAT_VERSION = 1

_READ_BYTES = 1 << 20
_SERVING_PACKAGES = ("safetensors", "tokenizers", "torch")


class ManifestError(ModelFolderError):
    """No manifest, or one that is not a manifest of this format."""


class UnlistedFileError(ModelFolderError):
    """A readable file that the manifest does not list."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: not in the manifest; remove it or register the folder again")
        self.name = name


class ChangedFileError(ModelFolderError):
    """A file whose bytes are not those that were registered."""

    def __init__(self, name: str, expected_sha256: str, found_sha256: str) -> None:
        super().__init__(
            f"{name}: changed; sha256 is {found_sha256}, the manifest says {expected_sha256}"
        )
        self.name = name
        self.expected_sha256 = expected_sha256
        self.found_sha256 = found_sha256


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the folder itself cannot tell about a model.

    Without a version the digest of its files is the version, so changed bytes never pass under an
    old one. Without dependencies those that serve it here are recorded. `pooling` is how the model
    was trained to make embeddings. The last token is the one that has seen all others; most
    decoders that were trained for it use it, and it did better on one that was not
    (ops/decisions/0030).
    """

    name: str
    source: str = "unknown"
    licence: str = "unknown"
    version: str | None = None
    dependencies: dict[str, str] = field(default_factory=dict)
    pooling: Pooling = Pooling.LAST


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a model folder."""

    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One immutable version of a model, as kept in manifest.json beside its files.

    `dtype` is that of the stored weights, and `quantisation` says how linear layers are rounded,
    "int8" or "int4 in groups of 32, linear layers in int8: 12"; None if they are not.
    `context_length` counts prompt and generated tokens together. `tokenizer_sha256` is of
    tokenizer.json, `chat_template_sha256` of the template's text; a model without a template takes
    plain prompts only. `dependencies` are the package versions that the folder was made or
    registered with. `pooling` is how hidden states become an embedding.
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
    quantisation: str | None = None
    pooling: Pooling = Pooling.LAST

    @property
    def digest(self) -> str:
        """The sha256 over all files: equal exactly when two folders hold the same model."""
        return _digest(self.files)


def write_manifest(folder: Path, provenance: Provenance) -> Manifest:
    """Describe `folder` as it is now and write its manifest.json, replacing an older one."""
    manifest = describe(folder, provenance)
    # In one step: a reader sees the old manifest or the new one, never half of it.
    draft = folder / f".{MANIFEST_NAME}"
    draft.write_bytes(TypeAdapter(Manifest).dump_json(manifest, indent=2) + b"\n")
    draft.replace(folder / MANIFEST_NAME)
    return manifest


def describe(folder: Path, provenance: Provenance) -> Manifest:
    """Hash all of `folder` and return its manifest; raise ModelFolderError if it is unfit."""
    paths = readable_files(folder)
    check_complete(paths)
    config = read_config(paths[CONFIG_NAME])
    template = chat_template(paths)
    files = tuple(_describe_file(path) for _, path in sorted(paths.items()))
    return Manifest(
        format_version=FORMAT_VERSION,
        name=provenance.name,
        version=provenance.version or _digest(files)[:12],
        source=provenance.source,
        licence=provenance.licence,
        architecture=_architecture(config),
        dtype=stored_dtype(weights_of(paths)),
        context_length=_positive_integer(config, "max_position_embeddings"),
        vocabulary_size=_positive_integer(config, "vocab_size"),
        tokenizer_sha256=next(file.sha256 for file in files if file.name == TOKENIZER_NAME),
        chat_template_sha256=None if template is None else _sha256(template),
        files=files,
        dependencies=provenance.dependencies or _serving_versions(),
        quantisation=_quantisation(config),
        pooling=provenance.pooling,
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
        raise ManifestError(f"{path}: format {manifest.format_version} is not {FORMAT_VERSION}")
    return manifest


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare every byte of `folder` with `manifest`; raise ModelFolderError at a difference."""
    paths = readable_files(folder)
    listed = {file.name for file in manifest.files}
    for name in sorted(paths.keys() - listed):
        raise UnlistedFileError(name)
    for file in manifest.files:
        if file.name not in paths:
            raise MissingFileError(file.name)
        found = _describe_file(paths[file.name])
        if found != file:
            raise ChangedFileError(file.name, file.sha256, found.sha256)


def _describe_file(path: Path) -> ModelFile:
    digest = hashlib.sha256()
    size_bytes = 0
    with path.open("rb") as stream:
        while part := stream.read(_READ_BYTES):
            digest.update(part)
            size_bytes += len(part)
    return ModelFile(path.name, digest.hexdigest(), size_bytes)


def _digest(files: Iterable[ModelFile]) -> str:
    return _sha256("".join(sorted(f"{file.sha256}  {file.name}\n" for file in files)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _architecture(config: dict[str, Any]) -> str:
    match config.get("architectures"):
        case [str(architecture)]:
            return architecture
        case _:
            raise MalformedFileError(CONFIG_NAME, "architectures must name exactly one")


def _quantisation(config: dict[str, Any]) -> str | None:
    match config.get("quantization_config"):
        case None:
            return None
        case {"scheme": "int8" | "int4" as scheme, "group_size": int() | None as size, **rest}:
            kept_in_int8: Any = rest.get("kept_in_int8", ())
            return Quantisation(Scheme(scheme), size, tuple(kept_in_int8)).summary
        case _:
            raise MalformedFileError(CONFIG_NAME, "quantization_config is not one of ours")


def _positive_integer(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise MalformedFileError(CONFIG_NAME, f"{key} must be a positive integer")
    return value


def _serving_versions() -> dict[str, str]:
    installed = {found.name: found.version for found in metadata.distributions()}
    return {name: installed[name] for name in _SERVING_PACKAGES if name in installed}
