"""`promptmill up`: a stack on this machine until it is told to stop.

Owns the data folder's lock and connection.json, which tells the commands of this machine where the
stack answers and with which key; it is there as long as the stack is.
"""

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ops.connection import Connection
from ops.folder_lock import folder_lock
from ops.settings import Settings
from ops.stack import LocalStack
from ops.supervisor import Supervisor


def connection_file(settings: Settings) -> Path:
    """Return where a running stack says where it answers."""
    return settings.data_dir / "connection.json"


def run_up(settings: Settings, console: Console, *, flower: bool) -> None:
    """Run the stack until a signal; raises StackError and FolderInUseError.

    The first signal stops it in order: running jobs finish. A second one, while it stops, ends it
    at once.
    """
    deaths: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    logs = settings.data_dir / "logs"
    _interrupt_by_any_signal()
    with (
        folder_lock(settings.data_dir) as lock,
        Supervisor(logs, lambda *death: deaths.put(death), [lock]) as supervisor,
    ):
        stack = LocalStack(settings, supervisor, flower=flower)
        try:
            stack.start(settings.data_dir / "store")
            with _announced(stack.connection, connection_file(settings)):
                _tell(console, stack, logs)
                while True:
                    name, status = deaths.get()
                    console.print(
                        f"[yellow]{name} ended with status {status}; starting it again[/]"
                    )
        except KeyboardInterrupt:
            console.print("stopping: running jobs finish, the rest stays queued")


def _interrupt_by_any_signal() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup stays in force
        signal.signal(signal.SIGHUP, interrupt)


@contextmanager
def _announced(connection: Connection, file: Path) -> Iterator[None]:
    connection.write(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _tell(console: Console, stack: LocalStack, logs: Path) -> None:
    connection = stack.connection
    lines = [f"API     {connection.url}   key {connection.api_key}"]
    if connection.flower_url:
        lines.append(f"Flower  {connection.flower_url}   user promptmill, password the key")
    lines += [f"metrics {url}   {name}" for name, url in stack.metrics_urls.items()]
    lines.append(f"logs    {logs}")
    lines.append('try     promptmill submit "What is a prompt mill?" --wait 60      (Ctrl-C stops)')
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
