"""llama-server, built from the sources that llama-cpp-python ships: about 11 minutes on two cores.

Owns the build and the model file, both under the environment's folder. A build that was cut off
goes on where it stopped.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_SOURCES = "llama-cpp-python==0.3.36"
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def ensure_server(folder: Path) -> Path:
    """Build llama-server below `folder`; return its program."""
    server = folder / "build" / "bin" / "llama-server"
    if server.exists():
        return server
    source = _ensure_sources(folder)
    tools = Path(sys.executable).parent
    cmake, ninja = str(tools / "cmake"), str(tools / "ninja")
    build = str(folder / "build")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    _run(cmake, "-S", str(source), "-B", build, *generator, *_OPTIONS)
    _run(cmake, "--build", build, "--target", "llama-server")
    return server


def ensure_model(folder: Path, model: Path) -> Path:
    """Convert a model folder to one BF16 file with llama.cpp's own script; return the file."""
    target = folder / f"{model.name}-bf16.gguf"
    if not target.exists():
        partial = target.with_suffix(".partial")
        script = str(_ensure_sources(folder) / "convert_hf_to_gguf.py")
        _run(sys.executable, script, str(model), "--outtype", "bf16", "--outfile", str(partial))
        partial.rename(target)
    return target


def _ensure_sources(folder: Path) -> Path:
    source = folder / "source"
    if source.exists():
        return source
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        _run(*pip, "--no-binary", "llama-cpp-python", "--dest", scratch, _SOURCES)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        (vendored,) = Path(scratch).glob("*/vendor/llama.cpp")
        shutil.move(vendored, source)
    return source


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=sys.stderr)
