"""What OpenAI's answers share: how a job's id is spelled, and token counts."""

from typing import Any

from queueing.job import Usage


def openai_id(prefix: str, job_id: str) -> str:
    """Return the id under which clients know a job: its random part behind another prefix."""
    return prefix + job_id.replace("-", "_", 1).partition("_")[2]


def openai_usage(usage: Usage) -> dict[str, Any]:
    """Return token counts under the names of chats and completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
