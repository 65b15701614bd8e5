"""Greedy answers on a device against transformers': recorded ones, or asked for on the spot.

python -m ops.bench.device_answers TASK OUTCOME, with the settings `device`, `kernels`, `oracle` (a
file that record_oracle wrote, or nothing), `num_prompts` and `dtypes` (with commas). In float32 an
answer may part only where the best token leads by next to nothing; in bfloat16 the share of equal
answers is told.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.config import ComputeType, EngineConfig, KernelChoice
from engine.loading import load_engine
from engine.sequence import SamplingParams, Sequence
from ops.bench.device_section import Section
from ops.bench.task import Task, run_task

_MAX_TOKENS = 24
_SMALLEST_MARGIN = 1e-3
_NUM_BLOCKS = 1024


@dataclass(frozen=True, slots=True)
class Expected:
    """An answer of transformers in float32, and by how much each token led the second."""

    prompt_ids: list[int]
    output_ids: list[int]
    margins: list[float]

    def parting_margin(self, token_ids: list[int]) -> float | None:
        """Return the margin where another answer parts from this one; None where they agree."""
        pairs = zip(token_ids, self.output_ids, strict=False)
        for place, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                return self.margins[place]
        if len(token_ids) == len(self.output_ids):
            return None
        return self.margins[min(len(token_ids), len(self.output_ids))]


def measure(task: Task) -> Section:
    """Answer all prompts together, in each type."""
    num_prompts = int(task.settings["num_prompts"])
    oracle = task.settings["oracle"]
    expected = (_recorded(Path(oracle)) if oracle else _ask_transformers(task, num_prompts))[
        :num_prompts
    ]
    rows: list[list[str]] = []
    failures: list[str] = []
    numbers: dict[str, object] = {}
    for dtype in map(ComputeType, task.settings["dtypes"].split(",")):
        config = EngineConfig(
            dtype=dtype,
            device=task.settings["device"],
            kernels=KernelChoice(task.settings["kernels"]),
            num_blocks=_NUM_BLOCKS,
            max_sequences=32,
        )
        kernels, answers = _answer(Path(task.model), config, expected, is_recorded=bool(oracle))
        margins = [
            margin
            for answer, wanted in zip(answers, expected, strict=True)
            if (margin := wanted.parting_margin(answer)) is not None
        ]
        worst = max(margins, default=0.0)
        num_equal = len(expected) - len(margins)
        rows.append([dtype.value, kernels, f"{num_equal} of {len(expected)}", f"{worst:.4f}"])
        numbers[dtype.value] = {"equal": num_equal, "of": len(expected), "worst_margin": worst}
        if dtype is ComputeType.FLOAT32 and worst >= _SMALLEST_MARGIN:
            failures.append(f"a float32 answer parts where the margin is {worst:.4f}")
    head = ["type", "kernels", "equal to transformers fp32", "largest margin at a parting"]
    return Section("Answers", head, rows, numbers, failures)


def _recorded(oracle: Path) -> list[Expected]:
    answers = json.loads(oracle.read_text(encoding="utf-8"))["answers"]
    return [
        Expected(answer["prompt_ids"], answer["output_ids"], answer["margins"])
        for answer in answers
    ]


def _ask_transformers(task: Task, num_prompts: int) -> list[Expected]:
    import transformers  # only here, for machines without it

    device = torch.device(task.settings["device"])
    load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its types know no device
    network = load(task.model, dtype=torch.float32).to(device).eval()
    network.generation_config.eos_token_id = None
    network.generation_config.pad_token_id = 0
    expected = []
    for request in task.requests[:num_prompts]:
        prompt = torch.tensor([request.prompt_ids], device=device)
        generated = network.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=_MAX_TOKENS,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        output_ids = generated.sequences[0, len(request.prompt_ids) :].tolist()
        best_two = torch.stack([logits[0] for logits in generated.logits]).float().topk(2).values
        margins = (best_two[:, 0] - best_two[:, 1]).tolist()
        expected.append(Expected(request.prompt_ids, output_ids, margins))
    return expected


def _answer(
    folder: Path, config: EngineConfig, expected: list[Expected], *, is_recorded: bool
) -> tuple[str, list[list[int]]]:
    """Return the kernels that ran and their answers; recorded ones stop where the model does."""
    engine = load_engine(folder, config)
    sampling = SamplingParams(max_tokens=_MAX_TOKENS, ignore_eos=not is_recorded)
    for index, wanted in enumerate(expected):
        engine.add(Sequence(str(index), wanted.prompt_ids, sampling))
    answers: dict[str, list[int]] = {}
    while engine.has_work:
        answers |= {done.sequence_id: list(done.token_ids) for done in engine.step().finished}
    return engine.facts.kernels, [answers[str(index)] for index in range(len(expected))]


if __name__ == "__main__":
    run_task(sys.argv[1:], measure)
