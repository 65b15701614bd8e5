"""Check a machine with a GPU: are the kernels and the answers right, and how fast is the engine.

    python -m ops.bench.device_check --out DIRECTORY

Is made to take under ten minutes. It needs a checkout and a Python of at least 3.11 with torch,
triton, numpy, safetensors, tokenizers and jinja2, and transformers where answers are not recorded.
Writes device-check.json and device-check.md, and ends with 1 if anything is wrong. Each part runs
in a process of its own: an error on a device spoils the process that met it, and no other part.

Without --model a random model of a known shape is made; speed does not depend on what weights say.
With --device cpu all of it runs small, to try the script, the kernels in Triton's interpreter.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random

import torch

from engine.config import KernelChoice
from engine.model.families import read_model_config
from engine.tokenizer import Tokenizer
from ops.bench.device_section import Section
from ops.bench.random_model import LARGE, SMALL, TINY, write_random_model
from ops.bench.task import Task, TokenRequest
from ops.bench.workload import read_workload

_REPOSITORY = Path(__file__).resolve().parents[2]
_ORACLE = _REPOSITORY / "tests" / "engine" / "oracle.json"
_SHAPES = {"tiny": TINY, "small": SMALL, "large": LARGE}
_PARTS = ("environment", "kernels", "answers", "speed")
_MOST_SECONDS = 240


def main() -> int:
    """Run all parts; return 1 if one found something wrong."""
    arguments = _parse()
    is_gpu = arguments.device == "cuda"
    with tempfile.TemporaryDirectory(prefix="promptmill-check-") as scratch:
        if arguments.model is not None:
            folder = arguments.model.resolve()
        else:
            folder = Path(scratch, "model")
            folder.mkdir()
            shape = _SHAPES[arguments.shape or ("small" if is_gpu else "tiny")]
            write_random_model(folder, shape, torch.bfloat16 if is_gpu else torch.float32)
        requests = _requests(folder)
        if not is_gpu:
            requests = [
                TokenRequest(request.id, request.prompt_ids[:40], max_tokens=4)
                for request in requests[:4]
            ]
        task = Task(str(folder), requests, 1, _settings(arguments))
        sections: list[Section] = []
        for section in _run_parts(task, arguments.only, Path(scratch)):
            sections.append(section)
            _write(sections, arguments.out)  # each time, should the machine be taken away
    return int(any(section.failures for section in sections))


def _write(sections: list[Section], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    found = {section.title: asdict(section) for section in sections}
    (out / "device-check.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    text = "\n\n".join(section.text() for section in sections)
    (out / "device-check.md").write_text(f"{text}\n", encoding="utf-8")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.device_check")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--model", type=Path, help="a model folder; without one, a random model")
    parser.add_argument("--shape", choices=[*_SHAPES], help="of the random model")
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="the model is the demo's: hold it to transformers' recorded answers",
    )
    parser.add_argument(
        "--kernels", choices=list(KernelChoice), help="for answers and speed, others than usual"
    )
    parser.add_argument("--out", type=Path, default=Path("device-check"))
    parser.add_argument("--only", choices=_PARTS, nargs="+", default=_PARTS)
    return parser.parse_args()


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    is_gpu = arguments.device == "cuda"
    return {
        "device": arguments.device,
        "kernels": arguments.kernels or ("auto" if is_gpu else "triton"),
        # The interpreter would take hours.
        "speed_kernels": arguments.kernels or ("auto" if is_gpu else "reference"),
        "dtypes": "float32,bfloat16" if is_gpu else "float32",  # as Triton's interpreter can
        "dtype": "bfloat16" if is_gpu else "float32",
        "in_flight": "1,32,128" if is_gpu else "1,2",
        "num_prompts": "64" if is_gpu else "3",
        "oracle": str(_ORACLE) if arguments.recorded else "",
        "bytes_per_s": "inf",
        "flop_per_s": "inf",
    }


def _run_parts(task: Task, parts: list[str], scratch: Path) -> Iterator[Section]:
    """Run parts one after another; the first tells the others what the device can do."""
    for part in parts:
        started = time.perf_counter()
        section = _run_part(part, task, scratch)
        if part == "environment":
            task.settings.update({name: str(value) for name, value in section.numbers.items()})
        print(f"{section.text()}\n\n({part}: {time.perf_counter() - started:.0f} s)\n", flush=True)  # noqa: T201
        yield section


def _run_part(part: str, task: Task, scratch: Path) -> Section:
    """Run one part in a process of its own; if that fails, its last lines are the section."""
    task_file, outcome_file = scratch / "task.json", scratch / f"{part}.json"
    task_file.write_text(json.dumps(asdict(task)), encoding="utf-8")
    variables = ["TRITON_INTERPRET=1"] if task.settings["device"] == "cpu" else []
    command = [sys.executable, "-m", f"ops.bench.device_{part}", str(task_file), str(outcome_file)]
    try:
        done = subprocess.run(
            ["env", *variables, *command],
            cwd=_REPOSITORY,
            capture_output=True,
            text=True,
            timeout=_MOST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Section(part, [part], [], failures=[f"took longer than {_MOST_SECONDS} s"])
    if done.returncode != 0:
        return Section(part, [part], [], failures=[done.stderr[-3000:]])
    return Section(**json.loads(outcome_file.read_text(encoding="utf-8")))


def _requests(folder: Path) -> list[TokenRequest]:
    """Return the standard workload as the model's tokens; without a tokenizer, as random ones."""
    requests = read_workload()
    if (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer.load(folder)
        return [
            TokenRequest(request.id, tokenizer.encode(request.prompt), request.max_tokens)
            for request in requests
        ]
    draw = Random(0)  # noqa: S311 no secret
    model = read_model_config(folder)
    return [
        TokenRequest(
            request.id,
            # About four letters to a token.
            [draw.randrange(1, model.vocab_size) for _ in range(1 + len(request.prompt) // 4)],
            request.max_tokens,
        )
        for request in requests
    ]


if __name__ == "__main__":
    sys.exit(main())
