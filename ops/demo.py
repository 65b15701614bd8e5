"""`promptmill demo`: the whole system at work on the real model, from submit to results, a killed
worker included.

Starts a stack of its own in a temporary folder, shows each promise kept, says what to try next, and
stops everything it started, however it ends. Every line it prints is what the system answered; a
promise that is not kept fails the demo.
"""

import json
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from standardwebhooks import Webhook, WebhookVerificationError

from engine.registry import load_manifest
from ops.client import ApiError, Client
from ops.settings import Settings
from ops.stack import LocalStack, StackError, with_models
from ops.supervisor import Supervisor

_PROMPTS = (
    ("realtime", 24, "What is the capital of France?"),
    ("realtime", 24, "Name three colours of the rainbow."),
    ("standard", 48, "Why is the sky blue? Answer in two sentences."),
    ("standard", 48, "Give me a recipe for pancakes in one paragraph."),
    ("standard", 32, "Translate 'good morning' into French."),
    ("standard", 64, "Explain what a message queue is to a child."),
    ("standard", 48, "What is photosynthesis?"),
    ("bulk", 64, "Write a short poem about the sea."),
    ("bulk", 64, "List five uses of a paper clip."),
    (
        "bulk",
        96,
        "Tell the story of a lighthouse keeper. " + "It was a dark and stormy night. " * 20,
    ),
    ("bulk", 64, "Summarise the water cycle."),
    ("bulk", 48, "What makes a good team?"),
)
_BATCH = (
    ("capital-1", {"messages": [{"role": "user", "content": "What is the capital of France?"}]}),
    ("capital-2", {"messages": [{"role": "user", "content": "What is the capital of Japan?"}]}),
    ("bad-line", {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": -1}),
    ("capital-3", {"messages": [{"role": "user", "content": "What is the capital of Egypt?"}]}),
)
_ENGINE = "engine1"
_KILL_AFTER = 3  # jobs that have been answered
_DEATHS_ALLOWED = 3  # ours, and two where memory is short while the model loads
_LIMIT_S = 120.0
_LOOK_EVERY_S = 0.05


class DemoFailed(RuntimeError):
    """A promise was not kept; the text says which."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What every step of the demo uses; `model` is the served model's name."""

    console: Console
    client: Client
    stack: LocalStack
    supervisor: Supervisor
    model: str


def run_demo(settings: Settings) -> int:
    """Run the demo; return the exit status. Raises StackError when there is no model."""
    settings = with_models(settings)
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    with tempfile.TemporaryDirectory(prefix="promptmill-demo-") as name, _receiver() as receiver:
        folder = Path(name)
        deaths: queue.SimpleQueue[str] = queue.SimpleQueue()
        with Supervisor(folder / "logs", lambda child, _status: deaths.put(child)) as supervisor:
            stack = LocalStack(_demo_settings(settings, folder, receiver.server_port), supervisor)
            try:
                _start(console, stack, folder)
                model = load_manifest(settings.models[0]).name
                scene = Scene(console, Client(stack.connection), stack, supervisor, model)
                _show_prompts_and_a_killed_worker(scene, deaths)
                _show_deadline(scene)
                _show_webhook(scene, receiver)
                _show_batch(scene, folder)
                _show_flower(scene)
            except (StackError, DemoFailed, ApiError, httpx.TransportError) as error:
                console.print(f"[bold red]The demo failed:[/] {error}")
                _print_logs(console, folder / "logs")
                return 1
            except KeyboardInterrupt:
                console.print("interrupted: stopping what was started")
                return 130
    _say_goodbye(console, time.monotonic() - began)
    return 0


def _demo_settings(settings: Settings, folder: Path, receiver_port: int) -> Settings:
    return settings.model_copy(
        update={
            "data_dir": folder / "data",
            "models": settings.models[:1],
            "api_port": 0,
            "flower_port": 0,
            # Shorter than the defaults, so that a killed worker's jobs come back while one watches.
            "lease_s": 4.0,
            "renew_s": 1.0,
            "webhook_allow_http": True,
            "webhook_allow_networks": ["127.0.0.0/8"],
            "webhook_allow_ports": [receiver_port],
        }
    )


def _start(console: Console, stack: LocalStack, folder: Path) -> None:
    steps = (
        (
            "Redis-compatible server with an append-only file",
            lambda: stack.start_store(folder / "store"),
        ),
        ("API under gunicorn", stack.start_api),
        ("engine worker, CPU worker and beat under Celery", stack.start_workers),
        ("Flower", stack.start_flower),
    )
    console.rule("[bold]promptmill: starting on this machine")
    for number, (what, start) in enumerate(steps, start=1):
        began = time.monotonic()
        with console.status(f"{number}/{len(steps)} {what}"):
            start()  # type: ignore[no-untyped-call]  # a lambda among methods
        console.print(f"  {number}/{len(steps)} {what}: up in {time.monotonic() - began:.1f} s")
    connection = stack.connection
    console.print(f"  API {connection.url}, Flower {connection.flower_url}")


def _show_prompts_and_a_killed_worker(scene: Scene, deaths: "queue.SimpleQueue[str]") -> None:
    console = scene.console
    console.rule("[bold]A dozen prompts; the engine worker is killed while it answers them")
    ids = [
        scene.client.submit(
            messages=[{"role": "user", "content": text}], priority=priority, max_tokens=max_tokens
        )["id"]
        for priority, max_tokens, text in _PROMPTS
    ]
    console.print(f"  {len(ids)} jobs accepted (202), waiting in Redis until the model is loaded")
    began = time.monotonic()
    for number, job in enumerate(_ended(scene, ids), start=1):
        _print_job(console, job)
        if job["state"] != "completed":
            raise DemoFailed(f"{job['id']} ended {job['state']}: {job['error']}")
        if number == _KILL_AFTER:
            pid = scene.supervisor.pid(_ENGINE)
            os.kill(pid, signal.SIGKILL)
            console.print(f"  [bold red]kill -9 {pid}[/]: the engine worker is gone, mid-sentence")
            console.print(f"  [yellow]{_next(deaths)} is started again by its supervisor[/]")
    again = sum(1 for job_id in ids if scene.client.job(job_id)["attempts"] > 1)
    console.print(
        f"  all {len(ids)} completed in {time.monotonic() - began:.1f} s;"
        f" {again} ran a second time after the kill, none was lost, none answered twice"
    )


def _next(deaths: "queue.SimpleQueue[str]") -> str:
    try:
        return deaths.get(timeout=_LIMIT_S)
    except queue.Empty:
        raise DemoFailed("the supervisor did not see that the engine worker died") from None


def _ended(scene: Scene, ids: list[str]) -> Iterator[dict[str, Any]]:
    """Yield each job when it has ended; raises DemoFailed when that takes too long, and StackError
    when the engine worker dies of itself.
    """
    pending = list(ids)
    until = time.monotonic() + _LIMIT_S
    while pending:
        if time.monotonic() > until:
            raise DemoFailed(f"{len(pending)} jobs did not end within {_LIMIT_S:.0f} s")
        scene.stack.check_alive(_ENGINE, _DEATHS_ALLOWED)
        for job_id in list(pending):
            job = scene.client.job(job_id)
            if job["finished_at"] is not None:
                pending.remove(job_id)
                yield job
        time.sleep(_LOOK_EVERY_S)


def _print_job(console: Console, job: dict[str, Any]) -> None:
    usage, stages = job["usage"] or {}, job["stages"]
    tokens = usage.get("completion_tokens", 0)
    decode_s = stages.get("decode_ms", 0) / 1000
    speed = f"{(tokens - 1) / decode_s:5.1f} tok/s" if decode_s and tokens > 1 else "      -    "
    wait = f"waited {stages.get('queue_ms', 0) / 1000:5.2f} s"
    text = (job["result"] or {}).get("text", "").replace("\n", " ")
    console.print(
        f"  {job['id']}  {job['priority']:8} {job['state']:9} {wait}  {tokens:3} tokens {speed}  ",
        end="",
        soft_wrap=True,
    )
    console.print(text[:60] + ("…" if len(text) > 60 else ""), markup=False, soft_wrap=True)


def _show_deadline(scene: Scene) -> None:
    scene.console.rule("[bold]A deadline that can't be met")
    job = scene.client.submit(prompt="Count to a thousand.", max_tokens=2000, deadline_s=0.4)
    ended = scene.client.wait(job["id"], _LIMIT_S)
    if ended["state"] != "expired":
        raise DemoFailed(f"a job with 0.4 s for 2000 tokens ended {ended['state']}")
    scene.console.print(
        f"  {ended['id']}  deadline 0.4 s  {ended['state']}: {ended['error']['message']}"
    )


def _show_webhook(scene: Scene, receiver: "_Receiver") -> None:
    scene.console.rule("[bold]A result told by a signed webhook")
    url = f"http://127.0.0.1:{receiver.server_port}/hook"
    job = scene.client.submit(prompt="Hello", max_tokens=8, webhook_url=url)
    try:
        headers, body = receiver.deliveries.get(timeout=_LIMIT_S)
        event: dict[str, Any] = Webhook(scene.stack.webhook_secret).verify(body, headers)
    except queue.Empty:
        raise DemoFailed("no webhook came") from None
    except WebhookVerificationError as error:
        raise DemoFailed(f"the webhook's signature is wrong: {error}") from error
    if event["data"]["id"] != job["id"]:
        raise DemoFailed(f"the webhook speaks of {event['data']['id']}, not of {job['id']}")
    scene.console.print(
        f"  {event['type']} for {event['data']['id']}: signature verified by standardwebhooks"
    )


def _show_batch(scene: Scene, folder: Path) -> None:
    scene.console.rule("[bold]A bulk file with one bad line")
    path = folder / "lines.jsonl"
    lines = [
        {
            "custom_id": custom_id,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": scene.model, "max_tokens": 24, "temperature": 0, **body},
        }
        for custom_id, body in _BATCH
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    created = scene.client.create_batch(scene.client.upload(path))
    with scene.console.status("running the batch"):
        last = _last_of(scene.client, created["id"])
    counts = last["request_counts"]
    if (counts["completed"], counts["failed"]) != (len(_BATCH) - 1, 1):
        raise DemoFailed(f"the batch ended {last['status']} with {counts}")
    for line in scene.client.content(last["output_file_id"]).splitlines():
        answer = json.loads(line)
        text = answer["response"]["body"]["choices"][0]["message"]["content"]
        scene.console.print(f"  {answer['custom_id']:10} {text!r}", markup=False)
    error = json.loads(scene.client.content(last["error_file_id"]))
    message = error["response"]["body"]["error"]["message"]
    scene.console.print(f"  {error['custom_id']:10} refused: {message}", markup=False)


def _last_of(client: Client, batch_id: str) -> dict[str, Any]:
    """Return a batch once it has ended; raises DemoFailed when that takes too long."""
    until = time.monotonic() + _LIMIT_S
    batch: dict[str, Any] = {}
    for batch in client.batch_progress(batch_id):
        if time.monotonic() > until:
            raise DemoFailed(f"the batch is {batch['status']} after {_LIMIT_S:.0f} s")
    return batch


def _show_flower(scene: Scene) -> None:
    scene.console.rule("[bold]What Flower saw")
    flower = httpx.Client(
        base_url=scene.stack.connection.flower_url or "",
        auth=("promptmill", scene.stack.api_key),
        trust_env=False,
    )
    rows = flower.get("/api/tasks", params={"limit": 100}).json()
    states: dict[str, int] = {}
    for row in rows.values():
        name = f"{row['name']} {row['state']}"
        states[name] = states.get(name, 0) + 1
    lengths = flower.get("/api/queues/length").json()["active_queues"]
    table = Table("queue", "waiting")
    for queue_row in lengths:
        table.add_row(queue_row["name"], str(queue_row["messages"]))
    if not states or not lengths:
        raise DemoFailed("Flower shows no tasks or no queues")
    scene.console.print(
        "  task rows: " + ", ".join(f"{name} {n}" for name, n in sorted(states.items()))
    )
    scene.console.print(table)


def _say_goodbye(console: Console, seconds: float) -> None:
    console.rule("[bold green]Every promise was kept")
    console.print(f"  {seconds:.0f} s in all; everything that was started has been stopped. Next:")
    console.print("    .venv/bin/promptmill up --flower            keep the same stack running")
    console.print(
        '    .venv/bin/promptmill submit "..." --wait 60  ask it something, in another terminal'
    )
    console.print(
        "    README.md                                   curl, webhooks, the openai client, batches"
    )


def _print_logs(console: Console, logs: Path) -> None:
    for log in sorted(logs.glob("*.log")):
        tail = log.read_text(errors="replace").splitlines()[-10:]
        console.print(f"[bold]{log.name}[/]")
        for line in tail:
            console.print(f"  {line[:400]}", markup=False)


def _interrupt() -> None:
    raise KeyboardInterrupt


class _Receiver(ThreadingHTTPServer):
    """A webhook receiver on loopback that keeps what was delivered."""

    daemon_threads = True

    def __init__(self) -> None:
        self.deliveries: queue.SimpleQueue[tuple[dict[str, str], bytes]] = queue.SimpleQueue()
        super().__init__(("127.0.0.1", 0), _ReceiverHandler)


class _ReceiverHandler(BaseHTTPRequestHandler):
    server: _Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.deliveries.put((dict(self.headers.items()), body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing: the demo prints what matters."""


@contextmanager
def _receiver() -> Iterator[_Receiver]:
    server = _Receiver()
    thread = threading.Thread(target=server.serve_forever, name="receiver", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
