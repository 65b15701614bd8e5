"""transformers on the standard workload, one request at a time; prints one Measurement as JSON.

python -m ops.bench.transformers_alone --model FOLDER --dtype bfloat16
"""

import json
import resource
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch
import transformers

from engine.tokenizer import Tokenizer
from ops.bench.workload import Measurement, Request, percentile, read_workload


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="bfloat16")
@click.option("--limit", type=int, help="Only the first requests.")
def main(model: Path, dtype: str, limit: int | None) -> None:
    """Run the workload once."""
    tokenizer = Tokenizer.load(model)
    weights_type = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=weights_type)
    network.generation_config.eos_token_id = None
    requests = read_workload(limit)
    _answer(network, tokenizer, Request("warm-up", "Hello", 4))
    started = time.perf_counter()
    answers: dict[str, list[int]] = {}
    latencies_s: list[float] = []
    for request in requests:
        answers[request.id] = _answer(network, tokenizer, request)
        latencies_s.append(time.perf_counter() - started)
    measurement = Measurement(
        name=f"transformers {transformers.__version__}, {dtype}, one at a time",
        num_requests=len(requests),
        num_output_tokens=sum(map(len, answers.values())),
        makespan_s=latencies_s[-1],
        latency_p50_s=percentile(latencies_s, 50),
        latency_p99_s=percentile(latencies_s, 99),
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        answers=answers,
        step_shares={},
    )
    click.echo(json.dumps(asdict(measurement)))


def _answer(
    network: Any,  # transformers' types describe generate as a tensor
    tokenizer: Tokenizer,
    request: Request,
) -> list[int]:
    prompt_ids = tokenizer.encode(request.prompt)
    generated = network.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids)),
        max_new_tokens=request.max_tokens,
        do_sample=False,
    )
    output_ids: list[int] = generated[0, len(prompt_ids) :].tolist()
    return output_ids


if __name__ == "__main__":
    main()
