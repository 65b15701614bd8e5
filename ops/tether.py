"""Run a command that ends when its parent does: `python -m ops.tether PARENT_ID COMMAND...`.

A supervisor that is killed can't stop its children; on Linux the kernel does it for us, as soon as
the thread that started the child is gone. Elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for SIGTERM at the parent's death, then become the command."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # The parent names itself: one that died before this line has another's id by now.
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606  becoming the command is the point


if __name__ == "__main__":
    main()
