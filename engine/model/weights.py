"""WeightFiles: a model folder's tensors by name, memory-mapped.

Owns reading safetensors and nothing else is ever read: no pickles. A tensor is touched when it is
asked for, so a model is loaded layer by layer and its file's pages can be dropped behind.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import WeightsError
from engine.folder import readable_files, weights_of
from engine.model.stored_linear import StoredLinear


class Weights(Protocol):
    """Tensors by name."""

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor: ...


class WeightFiles:
    """The open safetensors files of one folder."""

    def __init__(self, paths: list[Path], files: ExitStack, device: torch.device) -> None:
        self._device = device
        self._file_of = {}
        for path in paths:
            try:
                file = files.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                message = f"{path.name} is no safetensors file"
                raise WeightsError(message) from error
            self._file_of.update(dict.fromkeys(file.keys(), file))

    @property
    def names(self) -> list[str]:
        """Name all tensors."""
        return sorted(self._file_of)

    def __contains__(self, name: str) -> bool:
        """Tell whether there is a tensor of this name."""
        return name in self._file_of

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return one tensor on the device, in the wanted type.

        Raise WeightsError if it is not as promised.
        """
        tensor = self.stored(name)
        if tensor.shape != shape:
            message = f"tensor {name} has shape {tuple(tensor.shape)}, not {shape}"
            raise WeightsError(message)
        if tensor.is_floating_point() != dtype.is_floating_point:
            message = f"tensor {name} holds {tensor.dtype}, which is not {dtype}"
            raise WeightsError(message)
        return tensor.to(device=self._device, dtype=dtype)

    def stored(self, name: str) -> torch.Tensor:
        """Return one tensor as it is; raise WeightsError if there is none of this name."""
        if name not in self._file_of:
            message = f"tensor {name} is missing"
            raise WeightsError(message)
        tensor: torch.Tensor = self._file_of[name].get_tensor(name)
        return tensor


class EditedWeights:
    """Weights of which some have been replaced or removed since; the files stay as they are."""

    def __init__(self, files: WeightFiles) -> None:
        self._files = files
        self._replaced: dict[str, torch.Tensor] = {}
        self._removed: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Tell whether there is a tensor of this name now."""
        return name in self._replaced or (name in self._files and name not in self._removed)

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return one tensor in the wanted type."""
        if name not in self._replaced:
            return self._files.take(name, shape, dtype)
        assert self._replaced[name].shape == shape, "an edit keeps shapes"
        return self._replaced[name].to(dtype)

    def replace(self, name: str, tensor: torch.Tensor) -> None:
        """Let a tensor be this one from now on; it may be new."""
        self._replaced[name] = tensor.contiguous()

    def remove(self, name: str) -> None:
        """Leave a tensor out."""
        self._removed.add(name)

    def all(self) -> dict[str, torch.Tensor]:
        """Return all tensors as they are now."""
        kept = {name for name in self._files.names if name not in self._removed}
        return {name: self._files.stored(name) for name in kept} | self._replaced


def take_fused(
    weights: Weights, stored: StoredLinear, suffix: str, dtype: torch.dtype, *width: int
) -> torch.Tensor:
    """Take one kind of tensor of all parts of a fused layer, [out, *width]."""
    parts = [
        weights.take(f"{name}.{suffix}", (num_out, *width), dtype)
        for name, num_out in zip(stored.names, stored.num_outs, strict=True)
    ]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


@contextmanager
def open_weights(folder: Path, device: torch.device) -> Iterator[WeightFiles]:
    """Open a folder's weight files for as long as the model is being built."""
    with ExitStack() as files:
        yield WeightFiles(weights_of(readable_files(folder)), files, device)
