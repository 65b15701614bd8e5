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


@contextmanager
def open_weights(folder: Path, device: torch.device) -> Iterator[WeightFiles]:
    """Open a folder's weight files for as long as the model is being built."""
    with ExitStack() as files:
        yield WeightFiles(weights_of(readable_files(folder)), files, device)
