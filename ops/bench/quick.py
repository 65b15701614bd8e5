"""`make bench`: our engine at one and at 32 in flight beside transformers, and a step's time."""

from ops.bench.bench import Bench, Row
from ops.bench.equality import count_equal
from ops.bench.peers import ours, ours_int8, transformers_alone
from ops.bench.tables import COMPARISON_HEAD, comparison_cells, table


def quick_section(bench: Bench, dtype: str, repeats: int, *, with_transformers: bool) -> str:
    """Measure; return the table, the ratios and the shares."""
    contenders = [ours(dtype), ours(dtype, in_flight=1), ours_int8()]
    if with_transformers:
        contenders.append(transformers_alone(dtype))
    rows = bench.compare(contenders, repeats)
    settings = {"dtype": dtype}
    measured = bench.measure_ours("step_shares", settings, bench.requests, in_flight=32)
    return "\n\n".join(
        [
            table(COMPARISON_HEAD, map(comparison_cells, rows)),
            "\n".join(f"- {line}" for line in _ratios(rows)),
            f"Where a step's time goes, 32 in flight, kernels {measured['kernels']}:",
            table(
                ["part", "share"],
                [[part, f"{share:.1%}"] for part, share in measured["shares"].items()],
            ),
        ]
    )


def _ratios(rows: list[Row]) -> list[str]:
    batched, alone, int8, *others = rows
    answers = batched.typical.outcome.answers
    equal = count_equal(answers, alone.typical.outcome.answers)
    lines = [
        f"32 in flight over one: {batched.output_rate / alone.output_rate:.2f}",
        f"32 in flight with int8 weights over one: {int8.output_rate / alone.output_rate:.2f}",
        f"answers equal alone and in a batch: {equal} of {len(answers)}",
    ]
    for theirs in others:
        reference = theirs.typical.outcome.answers
        equal = count_equal(reference, answers)
        lines += [
            f"32 in flight over transformers: {batched.output_rate / theirs.output_rate:.2f}",
            f"one over transformers: {alone.output_rate / theirs.output_rate:.2f}",
            f"answers equal to transformers' (every fourth request): {equal} of {len(reference)}",
        ]
    return lines
