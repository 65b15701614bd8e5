"""What a person is told who did something wrong: a line, and which variable or command mends it."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from engine.registry import Provenance, write_manifest
from ops.cli import main
from tests.support.tiny_model import write_tiny_model


@pytest.fixture
def run(tmp_path):
    """Return a way to run a command with settings that are given as variables."""

    def command(*words, **settings):
        variables = {f"PROMPTMILL_{name.upper()}": value for name, value in settings.items()}
        environment = {"PROMPTMILL_DATA_DIR": str(tmp_path / "data"), **variables}
        return CliRunner().invoke(main, words, env=environment)

    return command


def error_of(result) -> str:
    """Return the one line that a command ended with."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return str(result.stderr.removeprefix("Error: ").strip())


def test_the_version_is_that_of_the_package(run):
    assert run("--version").stdout == f"promptmill, version {version('promptmill')}\n"


def test_a_bad_value_is_told_with_its_variable(run):
    told = error_of(run("beat", api_port="70000", dtype="float16"))

    assert told == (
        "settings: PROMPTMILL_API_PORT: Input should be less than or equal to 65535;"
        " PROMPTMILL_DTYPE: Input should be 'auto', 'float32' or 'bfloat16'"
    )


def test_values_that_do_not_go_together_are_told(run):
    assert error_of(run("beat", lease_s="6")).startswith("settings: renew_s must be at most half")


def test_a_list_that_is_none_is_told_with_what_is_wanted(run):
    told = error_of(run("up", models="/models/a"))

    assert told == 'settings: PROMPTMILL_MODELS: a JSON list is wanted, such as ["a", "b"]'


@pytest.mark.parametrize("word", ["up", "demo"])
def test_a_model_without_a_manifest_is_told_with_the_command_that_writes_it(run, word, tmp_path):
    told = error_of(run(word, models=json.dumps([str(tmp_path)])))

    assert told == f"{tmp_path} has no manifest: run `promptmill model add {tmp_path}`"


def test_an_engine_worker_on_a_folder_without_a_manifest_is_told(run, tmp_path):
    assert f"{tmp_path}/manifest.json" in error_of(
        run("worker", "engine", "--model", str(tmp_path))
    )


def test_a_manifest_that_is_none_is_told_without_all_that_it_lacks(run, tmp_path):
    (tmp_path / "manifest.json").write_text("{}")

    told = error_of(run("worker", "engine", "--model", str(tmp_path)))

    assert told.startswith(f"{tmp_path}/manifest.json: not a manifest: ")


def test_an_engine_worker_on_a_changed_model_says_which_file_in_its_last_line(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    write_manifest(folder, Provenance("tiny"))
    (folder / "config.json").write_bytes((folder / "config.json").read_bytes() + b" ")

    ended = subprocess.run(
        [sys.executable, "-m", "ops.cli", "worker", "engine", "--model", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: config.json: changed; ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("models", ["[]", '["/a", "/b"]'])
def test_an_engine_worker_wants_exactly_one_model(run, models):
    refused = run("worker", "engine", models=models)

    assert refused.exit_code == 2
    assert "--model" in refused.stderr


def test_an_api_without_a_key_is_told(run):
    assert "PROMPTMILL_API_KEY" in error_of(run("api"))


def test_an_api_with_a_model_folder_that_is_none_is_told(run, tmp_path):
    told = error_of(run("api", api_key="pm-key", models=json.dumps([str(tmp_path)])))

    assert f"{tmp_path}/manifest.json" in told


def test_a_store_that_is_away_is_told(run):
    told = error_of(run("keys", "list", redis_url="redis://127.0.0.1:1/0"))

    assert told == "the store is unavailable (connection)"


def test_a_model_folder_is_registered_with_its_hashes(run, tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")

    registered = run("model", "add", str(folder), "--licence", "Apache-2.0")

    manifest = json.loads((folder / "manifest.json").read_text())
    assert registered.stdout == f"tiny: {len(manifest['files'])} files, context 512\n"
    assert manifest["licence"] == "Apache-2.0"


def test_a_folder_that_is_no_model_is_told(run, tmp_path):
    assert error_of(run("model", "add", str(tmp_path)))
