"""NativeLibrary: the compiled kernels, found on disk and checked against this machine.

Owns which build fits the processor and the C signatures. Never compiles: `python -m engine.build`
does. A library is named after a digest of its sources, so a stale one is never loaded.
"""

import ctypes
import hashlib
from ctypes import c_double, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "native"


@dataclass(frozen=True, slots=True)
class Variant:
    """One instruction set: what the processor must have, and how to compile for it."""

    name: str
    needs: frozenset[str]  # as /proc/cpuinfo names them
    flags: tuple[str, ...]


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"})
_AVX512_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")

# The first that fits is the fastest.
VARIANTS = (
    Variant(
        "avx512bf16",
        _AVX512 | {"avx512_bf16", "avx512_vnni"},
        (*_AVX512_FLAGS, "-mavx512bf16", "-mavx512vnni"),
    ),
    Variant("avx512", _AVX512, _AVX512_FLAGS),
    Variant("avx2", frozenset({"avx2", "fma"}), ("-mavx2", "-mfma")),
    Variant("plain", frozenset(), ()),
)


class PackedWeight(ctypes.Structure):
    """A weight as linear.h takes it: addresses and sizes."""

    _fields_ = (
        ("words", c_void_p),
        ("num_in_words", c_int),
        ("num_out", c_int),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("group_size", c_int),
    )


class PackedExpert(ctypes.Structure):
    """One expert as experts.h takes it."""

    _fields_ = (("gate_up", PackedWeight), ("down", PackedWeight))


_WEIGHT = ctypes.POINTER(PackedWeight)
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "pm_create": (c_void_p, [c_int, c_int]),
    "pm_destroy": (None, [c_void_p]),
    "pm_set_batch": (None, [c_void_p, c_void_p]),
    "pm_num_operations": (c_int, [c_void_p]),
    "pm_run": (None, [c_void_p, *[c_int] * 5]),
    "pm_seconds": (None, [c_void_p, ctypes.POINTER(c_double)]),
    "pm_packed_words": (c_size_t, [c_int, c_int]),
    "pm_pack": (None, [c_void_p, c_int, c_int, c_int, c_void_p]),
    "pm_panel": (c_int, []),
    "pm_return_freed_memory": (None, []),
    "pm_use_large_pages": (None, [c_void_p, c_size_t]),
    "pm_embed": (None, [c_void_p, _WEIGHT, c_float, c_void_p]),
    "pm_norm": (None, [c_void_p, c_void_p, c_void_p, c_int, c_float, c_int, c_void_p]),
    "pm_norm_parts": (None, [*[c_void_p] * 2, *[c_int] * 2, c_void_p, c_int, c_float]),
    "pm_norm_add": (None, [*[c_void_p] * 3, c_int, c_float, c_void_p]),
    "pm_narrow": (None, [c_void_p, c_void_p, c_int, c_void_p]),
    "pm_linear": (None, [c_void_p, c_void_p, _WEIGHT, c_void_p, c_void_p]),
    "pm_linear_add": (None, [c_void_p, c_void_p, _WEIGHT, c_void_p]),
    "pm_linear_gated": (None, [c_void_p, c_void_p, _WEIGHT, c_int, c_void_p]),
    "pm_experts_add": (
        None,
        [c_void_p, c_void_p, _WEIGHT, ctypes.POINTER(PackedExpert), *[c_int] * 4, c_void_p],
    ),
    "pm_rotate": (None, [*[c_void_p] * 4, *[c_int] * 4, *[c_void_p] * 3, c_int]),
    "pm_attend": (
        None,
        [
            c_void_p,
            c_void_p,
            *[c_int] * 3,
            c_float,
            c_int,
            c_float,
            *[c_void_p] * 3,
            c_int,
            c_void_p,
        ],
    ),
    "pm_scores": (None, [c_void_p, c_void_p, _WEIGHT, c_float, c_void_p]),
    "pm_best": (None, [c_void_p, c_void_p, _WEIGHT, c_int, c_void_p]),
}


def library_path(variant: Variant) -> Path:
    """Return where the build of these sources for a variant lies, or would lie."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[hc]*")):
        digest.update(path.read_bytes())
    return SOURCES / f"promptmill-{variant.name}-{digest.hexdigest()[:12]}.so"


def fitting_variants() -> list[Variant]:
    """Return the variants this processor can run, the fastest first."""
    return [variant for variant in VARIANTS if variant.needs <= _processor_flags()]


def find_library() -> tuple[Variant, ctypes.CDLL] | None:
    """Load the fastest build there is for this machine; None when nothing has been built."""
    for variant in fitting_variants():
        if library_path(variant).exists():
            return variant, load_library(variant)
    return None


def load_library(variant: Variant) -> ctypes.CDLL:
    """Load one build. Its calls let other threads of Python run."""
    library = ctypes.CDLL(str(library_path(variant)))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def _processor_flags() -> frozenset[str]:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return frozenset()
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return frozenset(line.split(":", 1)[1].split())
    return frozenset()
