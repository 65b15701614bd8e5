"""Run a command that ends when its parent does: `python -m ops.tether COMMAND...`.

A supervisor that is killed can't stop its children; on Linux the kernel does it for us. Elsewhere
the command just runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for SIGTERM at the parent's death, then become the command."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the kernel knew
            sys.exit(1)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606  becoming the command is the point


if __name__ == "__main__":
    main()
