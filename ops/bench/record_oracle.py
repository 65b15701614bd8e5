"""Record what transformers answers, greedily and in float32: the oracle our engine is held to.

Reads the prompts from tests/engine/oracle.json and writes the same file with fresh answers:

    python -m ops.bench.record_oracle --model .cache/models/SmolLM2-135M-Instruct

Each answer has its token ids, without the end token, and at each step by how much the best token's
logit led the second's: where that is next to nothing, another order of summation may choose the
other one.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
import transformers

from engine.tokenizer import Tokenizer

ORACLE = Path(__file__).resolve().parents[2] / "tests" / "engine" / "oracle.json"


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt and transformers' answer to it."""

    prompt: str
    is_chat: bool
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str
    margins: list[float]


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--max-tokens", default=24, show_default=True)
def main(model: Path, max_tokens: int) -> None:
    """Remake tests/engine/oracle.json."""
    recorded = json.loads(ORACLE.read_text(encoding="utf-8"))["answers"]
    tokenizer = Tokenizer.load(model)
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    answers = []
    for item in recorded:
        prompt, is_chat = item["prompt"], item["is_chat"]
        chat = [{"role": "user", "content": prompt}]
        prompt_ids = tokenizer.encode_chat(chat) if is_chat else tokenizer.encode(prompt)
        answers.append(_answer(network, prompt, prompt_ids, max_tokens, is_chat=is_chat))
        click.echo(f"{len(answers)} of {len(recorded)}")
    made_with = {"transformers": transformers.__version__, "torch": torch.__version__}
    head = json.dumps({"made_with": made_with, "max_tokens": max_tokens})[:-1]
    lines = ",\n".join(json.dumps(asdict(answer), ensure_ascii=False) for answer in answers)
    ORACLE.write_text(f'{head}, "answers": [\n{lines}\n]}}\n', encoding="utf-8")


def _answer(
    network: Any,  # transformers' types describe generate as a tensor
    prompt: str,
    prompt_ids: list[int],
    max_tokens: int,
    *,
    is_chat: bool,
) -> Answer:
    generated = network.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids)),
        max_new_tokens=max_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    output_ids = generated.sequences[0, len(prompt_ids) :].tolist()
    best_two = torch.stack([logits[0] for logits in generated.logits]).topk(2).values
    margins = (best_two[:, 0] - best_two[:, 1]).tolist()
    has_stopped = output_ids[-1] == network.generation_config.eos_token_id
    return Answer(
        prompt=prompt,
        is_chat=is_chat,
        prompt_ids=prompt_ids,
        output_ids=output_ids[:-1] if has_stopped else output_ids,
        finish_reason="stop" if has_stopped else "length",
        margins=[round(margin, 6) for margin in margins],
    )


if __name__ == "__main__":
    main()
