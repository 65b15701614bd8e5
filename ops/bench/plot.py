"""Draw throughput against concurrency; runs in an environment of its own, which has matplotlib.

python -m ops.bench.plot FILE.svg, with {"in_flight": [...], "curves": {name: [...]}} coming in. The
first curve is the limit, the second ours.
"""

import json
import sys

from matplotlib import use  # type: ignore[import-not-found] # lives in an environment of its own
from matplotlib.figure import Figure  # type: ignore[import-not-found] # as above


def main(target: str) -> None:
    """Read the curves, write the picture."""
    use("svg")
    points = json.load(sys.stdin)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for index, (name, rates) in enumerate(points["curves"].items()):
        style = {0: "k--", 1: "o-"}.get(index, ".-")
        axes.plot(points["in_flight"], rates, style, label=name, linewidth=2.5 if index == 1 else 1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(points["in_flight"], [str(level) for level in points["in_flight"]])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("requests in flight")
    axes.set_ylabel("output tokens per second")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1])
