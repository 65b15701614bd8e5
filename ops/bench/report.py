"""docs/performance.md: the page's measured sections, each between two marks, and where it is from.

Owns how a section is replaced and what a number comes with: command, machine, commit and date. The
text around the marks is written by hand and stays.
"""

import platform
import subprocess
import time
from pathlib import Path

import psutil


def replace_section(page: str, name: str, body: str) -> str:
    """Put a new body between the marks of a section; raise ValueError where it has none."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"the page has no section {name}")
    return f"{before}{begin}\n{body}\n{end}{after}"


def origin(command: str, worst_others_share: float) -> str:
    """Say where numbers come from, in one line."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return (
        f"`{command}`, {time.strftime('%Y-%m-%d')}, commit {_commit()}; {_processor()},"
        f" {psutil.cpu_count()} processors, {memory_gib:.0f} GiB, {platform.system()}; others used"
        f" at most {worst_others_share:.0%} of the processors."
    )


def _commit() -> str:
    """Name the commit, and say if what is measured has changed since; pages are written here."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return (_git("describe", "--always") or "unknown") + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _processor() -> str:
    """Name the processor; where Linux does not tell, Python's guess has to do."""
    described = Path("/proc/cpuinfo")
    if described.exists():
        for line in described.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
