import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import UnsupportedModelError, WeightsError
from engine.folder import ForbiddenFileError, MalformedFileError, MissingFileError
from engine.registry import (
    ChangedFileError,
    ManifestError,
    Provenance,
    UnlistedFileError,
    describe,
    load_manifest,
    verify,
    write_manifest,
)
from engine.sequence import Pooling

TINY = Provenance(name="tiny", source="made by hand", licence="CC0-1.0")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 128,
    "vocab_size": 32,
    "dtype": "float32",
}


@pytest.fixture
def folder(tmp_path):
    """Lay out the smallest folder that can be registered."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "tokenizer.json", {"version": "1.0"})
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    write_weights(folder / "model.safetensors")
    return folder


def test_a_registered_folder_is_what_its_manifest_says(folder):
    written = write_manifest(folder, TINY)

    loaded = load_manifest(folder)
    verify(folder, loaded)

    assert loaded == written


def test_a_manifest_tells_limits_and_origin(folder):
    manifest = write_manifest(folder, TINY)

    assert (manifest.name, manifest.source, manifest.licence) == ("tiny", "made by hand", "CC0-1.0")
    assert (manifest.context_length, manifest.vocabulary_size) == (128, 32)
    assert manifest.architecture == "LlamaForCausalLM"


def test_a_manifest_tells_how_the_model_pools_and_an_old_one_means_the_last_token(folder):
    write_manifest(folder, replace(TINY, pooling=Pooling.MEAN))
    told = load_manifest(folder).pooling
    path = folder / "manifest.json"
    fields = json.loads(path.read_bytes())
    del fields["pooling"]
    path.write_text(json.dumps(fields))

    assert told is Pooling.MEAN
    assert load_manifest(folder).pooling is Pooling.LAST


def test_the_dtype_is_that_of_the_weights_and_not_of_the_config(folder):
    manifest = write_manifest(folder, TINY)

    assert manifest.dtype == "bfloat16"


def test_without_a_version_the_bytes_are_the_version(folder):
    before = describe(folder, TINY)

    write_json(folder / "config.json", CONFIG | {"vocab_size": 33})

    assert describe(folder, TINY).version != before.version


def test_equal_folders_have_equal_manifests_whenever_they_are_registered(folder):
    first = write_manifest(folder, TINY)
    (folder / "README.md").write_text("a note")
    (folder / "config.json").touch()

    assert write_manifest(folder, TINY) == first


def test_one_changed_byte_is_named_with_both_hashes(folder):
    manifest = write_manifest(folder, TINY)
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"\x01")

    with pytest.raises(ChangedFileError) as caught:
        verify(folder, manifest)

    assert caught.value.name == "model.safetensors"
    assert caught.value.expected_sha256 in str(caught.value)
    assert caught.value.found_sha256 in str(caught.value)


def test_a_missing_file_is_named(folder):
    manifest = write_manifest(folder, TINY)
    (folder / "chat_template.jinja").unlink()

    with pytest.raises(MissingFileError, match="chat_template.jinja"):
        verify(folder, manifest)


@pytest.mark.parametrize("name", ["extra.safetensors", "generation_config.json"])
def test_a_readable_file_that_came_later_is_refused(folder, name):
    manifest = write_manifest(folder, TINY)
    (folder / name).write_bytes(b"{}")

    with pytest.raises(UnlistedFileError, match=name):
        verify(folder, manifest)


@pytest.mark.parametrize(
    "name",
    ["pytorch_model.bin", "weights.pt", "modeling_tiny.py", "model.gguf", "model.safetensors.zip"],
)
def test_anything_but_safetensors_and_known_settings_is_refused(folder, name):
    (folder / name).write_bytes(b"")

    with pytest.raises(ForbiddenFileError, match=name):
        write_manifest(folder, TINY)


def test_a_folder_inside_the_folder_is_refused(folder):
    (folder / "original").mkdir()

    with pytest.raises(ForbiddenFileError, match="original"):
        write_manifest(folder, TINY)


def test_a_link_out_of_the_folder_is_refused(folder, tmp_path):
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    (folder / "tokenizer.json").symlink_to(tmp_path / "tokenizer.json")

    with pytest.raises(ForbiddenFileError, match="tokenizer.json"):
        write_manifest(folder, TINY)


def test_a_link_that_replaced_a_file_after_registration_is_refused(folder, tmp_path):
    manifest = write_manifest(folder, TINY)
    (folder / "config.json").rename(tmp_path / "config.json")
    (folder / "config.json").symlink_to(tmp_path / "config.json")

    with pytest.raises(ForbiddenFileError, match="config.json"):
        verify(folder, manifest)


def test_a_folder_that_was_itself_linked_to_is_served(folder, tmp_path):
    write_manifest(folder, TINY)
    link = tmp_path / "current"
    link.symlink_to(folder)

    verify(link, load_manifest(link))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_without_what_every_model_needs_is_refused(folder, name):
    (folder / name).unlink()

    with pytest.raises(MissingFileError):
        write_manifest(folder, TINY)


def test_a_shard_that_the_index_names_must_be_there(folder):
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}}
    write_json(folder / "model.safetensors.index.json", index)

    with pytest.raises(MissingFileError, match="model-00002.safetensors"):
        write_manifest(folder, TINY)


def test_a_model_that_wants_its_own_code_run_is_refused(folder):
    write_json(folder / "config.json", CONFIG | {"auto_map": {"AutoModel": "modeling.Tiny"}})

    with pytest.raises(UnsupportedModelError, match="auto_map"):
        write_manifest(folder, TINY)


@pytest.mark.parametrize(
    "change",
    [
        {"max_position_embeddings": None},
        {"max_position_embeddings": True},
        {"vocab_size": -1},
        {"vocab_size": "32"},
        {"architectures": []},
        {"architectures": ["A", "B"]},
    ],
)
def test_a_config_without_usable_limits_is_refused(folder, change):
    write_json(folder / "config.json", CONFIG | change)

    with pytest.raises(MalformedFileError, match="config.json"):
        write_manifest(folder, TINY)


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_no_json_object_is_refused(folder, content):
    (folder / "config.json").write_bytes(content)

    with pytest.raises(MalformedFileError, match="config.json"):
        write_manifest(folder, TINY)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04pickle",
        (2**63).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        (4).to_bytes(8, "little") + b'{"a"',
        (8).to_bytes(8, "little") + b'{"a": 1}',
    ],
)
def test_weights_that_are_no_safetensors_are_refused(folder, content):
    (folder / "model.safetensors").write_bytes(content)

    with pytest.raises(WeightsError):
        write_manifest(folder, TINY)


def test_a_template_in_the_tokenizer_settings_counts_as_the_models_own(folder):
    with_file = describe(folder, TINY).chat_template_sha256
    (folder / "chat_template.jinja").unlink()
    write_json(folder / "tokenizer_config.json", {"chat_template": "{{ messages }}"})

    assert describe(folder, TINY).chat_template_sha256 == with_file


def test_a_model_without_a_template_is_registered_without_one(folder):
    (folder / "chat_template.jinja").unlink()

    assert describe(folder, TINY).chat_template_sha256 is None


def test_a_folder_without_a_manifest_says_so(folder):
    with pytest.raises(ManifestError, match="register the folder first"):
        load_manifest(folder)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format_version": 1, "surprise": 2}'])
def test_something_else_under_the_manifests_name_is_refused(folder, content):
    (folder / "manifest.json").write_bytes(content)

    with pytest.raises(ManifestError, match="not a manifest"):
        load_manifest(folder)


def test_a_manifest_of_a_later_format_is_refused(folder):
    write_manifest(folder, TINY)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    write_json(folder / "manifest.json", manifest | {"format_version": 2})

    with pytest.raises(ManifestError, match="format 2"):
        load_manifest(folder)


@pytest.mark.real_model
def test_the_demonstration_model_is_what_its_manifest_says(model_folder):
    manifest = load_manifest(model_folder)

    verify(model_folder, manifest)

    assert (manifest.dtype, manifest.context_length) == ("bfloat16", 8192)


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))


def write_weights(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
