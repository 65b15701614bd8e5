"""The shape of the repository: who may import whom, and what importing loads."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("api", "engine", "ops", "queueing", "workers")
SOURCES = sorted(path for name in PACKAGES for path in (REPOSITORY / name).rglob("*.py"))


def test_the_parts_import_only_whom_they_may(monkeypatch):
    monkeypatch.chdir(REPOSITORY)

    assert lint_imports(no_cache=True) == 0


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("api.app", {"torch", "transformers", "celery", "kombu", "workers", "engine.engine"}),
        ("workers.app", {"torch", "transformers", "flask", "engine.engine"}),
        ("workers.beat", {"torch", "flask", "engine"}),
        ("engine.scheduler", {"torch", "redis", "celery"}),
        ("engine.registry", {"torch", "transformers", "safetensors"}),
        ("engine.tokenizer", {"torch", "transformers"}),
        ("queueing.queue", {"torch", "celery", "flask", "engine"}),
        ("ops.logs", {"torch", "celery", "flask", "gunicorn"}),
        ("ops.metrics", {"torch", "celery", "flask"}),
        ("ops.settings", {"torch", "celery", "flask"}),
    ],
)
def test_importing_a_part_loads_nothing_heavy(module, unwanted):
    script = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"

    printed = subprocess.check_output([sys.executable, "-c", script], cwd=REPOSITORY, timeout=60)

    assert unwanted.isdisjoint(json.loads(printed))


def test_every_package_is_listed_for_the_wheel():
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())

    packages = {".".join(path.parent.relative_to(REPOSITORY).parts) for path in SOURCES}

    assert packages == set(settings["tool"]["setuptools"]["packages"])


def test_packages_run_nothing_when_imported():
    initialisers = [path for path in SOURCES if path.name == "__init__.py"]

    filled = [path for path in initialisers if path.read_text().strip()]

    # The engine's holds a docstring: the letters of tensor shapes.
    assert filled == [REPOSITORY / "engine" / "__init__.py"]


@pytest.mark.parametrize("name", ["utils", "common", "helpers", "base", "misc", "manager"])
def test_no_file_is_named_after_nothing(name):
    assert [path for path in SOURCES if path.stem == name] == []
