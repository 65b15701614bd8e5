"""As much of curl as our pages use, for machines without it: `python -m tests.support.curl ...`.

Prints the answer's body; an answer that is an error is exit status 22, as with curl's `--fail`.
"""

import argparse
import sys

import httpx


def main(words: list[str]) -> int:
    """Send what curl would; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-X", dest="method")
    parser.add_argument("-d", dest="data")
    given = parser.parse_args(words)
    answer = httpx.request(
        given.method or ("GET" if given.data is None else "POST"),
        given.url if "://" in given.url else f"http://{given.url}",
        headers=[tuple(header.split(": ", 1)) for header in given.headers],
        content=given.data,
        timeout=60.0,
        trust_env=False,
    )
    print(answer.text)  # noqa: T201  its output
    return 22 if answer.is_error else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
