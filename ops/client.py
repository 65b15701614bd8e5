"""Client: the native surface and the file routes from the command line's side. Errors keep the
server's words.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from ops.connection import Connection

# The endpoint that most lines of batches ask.
CHAT = "/v1/chat/completions"

_POLL_WAIT_S = 20.0
_BUSY_PAUSE_S = 0.5


class ApiError(RuntimeError):
    """The API refused; `code` is its error code."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Client:
    """Talks to one stack. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._http = httpx.Client(
            base_url=connection.url,
            headers={"Authorization": f"Bearer {connection.api_key}"},
            timeout=httpx.Timeout(10.0, read=_POLL_WAIT_S + 10.0),
            trust_env=False,
        )

    def close(self) -> None:
        """Give back its connections."""
        self._http.close()

    def submit(self, **fields: Any) -> dict[str, Any]:
        """Submit a job; fields as POST /v1/jobs takes them. Raises ApiError."""
        present = {name: value for name, value in fields.items() if value is not None}
        return self._json("POST", "/v1/jobs", json=present)

    def job(self, job_id: str, wait_s: float = 0.0) -> dict[str, Any]:
        """Return a job as it is, or when it has ended within `wait_s`. Raises ApiError."""
        params = {"wait": f"{wait_s:.1f}"} if wait_s else {}
        return self._json("GET", f"/v1/jobs/{job_id}", params=params)

    def wait(self, job_id: str, limit_s: float) -> dict[str, Any]:
        """Return a job once it has ended, or as it is after `limit_s`. Raises ApiError."""
        until = time.monotonic() + limit_s
        while True:
            asked_at = time.monotonic()
            left_s = max(0.0, until - asked_at)
            wait_s = min(_POLL_WAIT_S, left_s)
            job = self.job(job_id, wait_s)
            if job["finished_at"] is not None or left_s == 0.0:
                return job
            if time.monotonic() - asked_at < wait_s / 2:
                time.sleep(_BUSY_PAUSE_S)  # too many wait already: it answered at once

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancel a job. Raises ApiError."""
        return self._json("POST", f"/v1/jobs/{job_id}/cancel")

    def upload(self, path: Path) -> str:
        """Upload a batch file; return its id. Raises ApiError."""
        with path.open("rb") as file:
            answer = self._json(
                "POST", "/v1/files", data={"purpose": "batch"}, files={"file": (path.name, file)}
            )
        return str(answer["id"])

    def create_batch(self, file_id: str, endpoint: str = CHAT) -> dict[str, Any]:
        """Start a batch over a file whose lines are for one endpoint. Raises ApiError."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"}
        return self._json("POST", "/v1/batches", json=body)

    def batch_progress(self, batch_id: str, every_s: float = 0.5) -> Iterator[dict[str, Any]]:
        """Yield the batch as it goes on; the last one has ended. Raises ApiError."""
        while True:
            batch = self._json("GET", f"/v1/batches/{batch_id}")
            yield batch
            if batch["status"] in ("completed", "failed", "expired", "cancelled"):
                return
            time.sleep(every_s)

    def content(self, file_id: str) -> bytes:
        """Return a file's bytes. Raises ApiError."""
        return self._checked(self._http.get(f"/v1/files/{file_id}/content")).content

    def webhook_secret(self) -> str:
        """Return what signs the webhooks that one's jobs name. Raises ApiError."""
        return str(self._json("GET", "/v1/webhook_secret")["signing_secret"])

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._checked(self._http.request(method, path, **options)).json()
        return answer

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        raise _refusal(response)


def _refusal(response: httpx.Response) -> ApiError:
    status = response.status_code
    try:
        error = response.json()["error"]
        return ApiError(status, str(error["code"]), str(error["message"]))
    except (ValueError, LookupError, TypeError):  # somebody between us and the API answered
        return ApiError(status, f"http_{status}", f"{status} {response.reason_phrase}")
