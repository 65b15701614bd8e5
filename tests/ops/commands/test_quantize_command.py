import pytest
from click.testing import CliRunner

from engine.registry import Provenance, load_manifest, verify, write_manifest
from ops.commands.quantize import quantize
from tests.support.family_models import write_family_model
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path):
    folder = write_tiny_model(tmp_path / "tiny")
    write_manifest(folder, Provenance("tiny", licence="Apache-2.0"))
    return folder


def run(*arguments):
    return CliRunner().invoke(quantize, [str(argument) for argument in arguments])


@pytest.mark.parametrize(
    ("options", "quantisation"),
    [
        (["--scheme", "int8"], "int8"),
        (["--scheme", "int4-128", "--steps", "2", "--max-rise", "0"], "int4 in groups of 128"),
    ],
)
def test_a_quantised_copy_says_in_its_manifest_what_it_is(folder, tmp_path, options, quantisation):
    result = run(folder, "-o", tmp_path / "copy", "--text-tokens=24", *options)

    assert result.exit_code == 0, result.output
    manifest = load_manifest(tmp_path / "copy")
    verify(tmp_path / "copy", manifest)
    assert manifest.quantisation == quantisation
    assert (manifest.dtype, manifest.licence) == ("float32", "Apache-2.0")
    assert "tiny" in manifest.source


def test_what_is_kept_in_bytes_is_said_and_keeps_to_the_rise_that_is_allowed(folder, tmp_path):
    options = ["--scheme", "int4-32", "--steps", "1", "--max-rise", "20"]

    result = run(folder, "-o", tmp_path / "copy", "--text-tokens=24", *options)

    assert result.exit_code == 0, result.output
    assert "int4 in groups of 32, linear layers in int8: " in result.output
    assert "rises by " in result.output
    assert "more than" not in result.output


def test_a_model_that_can_not_be_quantised_is_refused_before_it_writes(tmp_path):
    folder = write_family_model(tmp_path / "experts", "mixtral")
    write_manifest(folder, Provenance("experts", licence="Apache-2.0"))

    result = run(folder, "-o", tmp_path / "copy", "--scheme", "int8")

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "experts" in result.output
    assert not (tmp_path / "copy").exists()


def test_a_rise_that_was_missed_is_said(folder, tmp_path):
    options = ["--scheme", "int4-32", "--steps", "1", "--max-rise", "4"]

    result = run(folder, "-o", tmp_path / "copy", "--text-tokens=24", *options)

    assert result.exit_code == 0, result.output
    assert "more than 4%" in result.output


def test_a_rise_that_half_bytes_can_not_keep_to_is_refused(folder, tmp_path):
    options = ["--scheme", "int4-32", "--steps", "1", "--max-rise", "0.0000001"]

    result = run(folder, "-o", tmp_path / "copy", "--text-tokens=24", *options)

    assert result.exit_code == 1
    assert "take int8, or allow more" in result.output
    assert not (tmp_path / "copy").exists()


def test_a_folder_that_is_there_is_not_touched(folder):
    result = run(folder, "-o", folder, "--scheme", "int8")

    assert result.exit_code == 1
    assert "exists already" in result.output


def test_a_changed_folder_is_not_quantised(folder, tmp_path):
    (folder / "tokenizer_config.json").write_text("{}")

    result = run(folder, "-o", tmp_path / "copy", "--scheme", "int8")

    assert result.exit_code == 1
    assert "changed" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
