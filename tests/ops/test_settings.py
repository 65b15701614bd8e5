"""Settings in, environment out, and what is said about a bad one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from ops.settings import SECRETS, Settings
from ops.settings_page import page

# One of each type, none of them the default.
CHANGED = {
    "redis_url": "rediss://:p@ss@example.org:6380/3",
    "key_prefix": "{other}:",
    "data_dir": Path("/data with blanks"),
    "api_port": 0,
    "api_key": SecretStr("pm-key=with'\"$signs"),
    "lease_s": 0.25,
    "renew_s": 0.125,
    "models": [Path("/models/a b"), Path("relative")],
    "kv_blocks": 77,
    "dtype": "float32",
    "webhook_allow_http": True,
    "webhook_allow_networks": ["10.0.0.0/8", "fd00::/8"],
    "webhook_allow_ports": [8080, 8443],
}

# What a variable of the environment can hold.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
paths = texts.map(Path)


def read_in_a_child(settings: Settings) -> Settings:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in settings.as_environment().items():
            environment.setenv(name, value)
        return Settings()


def test_a_child_process_reads_what_was_set_here():
    settings = Settings.model_validate(CHANGED)

    assert read_in_a_child(settings) == settings


@given(
    models=st.lists(paths),
    networks=st.lists(texts),
    ports=st.lists(st.integers()),
    key=texts.map(SecretStr),
    lease_s=st.floats(min_value=1e-6, max_value=1e9),
    slots=st.integers(min_value=1),
)
def test_a_child_process_reads_any_value(models, networks, ports, key, lease_s, slots):
    settings = Settings(
        models=models,
        webhook_allow_networks=networks,
        webhook_allow_ports=ports,
        api_key=key,
        lease_s=lease_s,
        renew_s=lease_s / 2,
        slots=slots,
    )

    assert read_in_a_child(settings) == settings


def test_a_child_process_is_not_given_what_was_set_to_none(monkeypatch):
    monkeypatch.setenv("PROMPTMILL_KV_BLOCKS", "12")
    ours = Settings().model_copy(update={"kv_blocks": None})

    assert read_in_a_child(ours).kv_blocks is None


def test_what_may_be_none_is_none_unless_it_is_set():
    defaults = Settings()

    optional = {
        name for name, field in Settings.model_fields.items() if "None" in str(field.annotation)
    }

    assert {name for name in optional if getattr(defaults, name) is not None} == set()


def test_only_what_was_set_is_handed_on():
    assert Settings(slots=3).as_environment() == {"PROMPTMILL_SLOTS": "3"}


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch):
    monkeypatch.setenv("PROMPTMILL_API_KEY", "")
    monkeypatch.setenv("PROMPTMILL_SLOTS", "")

    assert Settings() == Settings.model_construct()


@pytest.fixture
def secret_file(tmp_path) -> Path:
    path: Path = tmp_path / "secret"
    path.write_text("redis://:secret-from-a-file@127.0.0.1/0\n")
    return path


def plain(value: object) -> object:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


@pytest.mark.parametrize("name", SECRETS)
def test_every_secret_may_lie_in_a_file(name, secret_file, monkeypatch):
    monkeypatch.setenv(f"PROMPTMILL_{name.upper()}_FILE", str(secret_file))

    assert plain(getattr(Settings(), name)) == secret_file.read_text().strip()


@pytest.mark.parametrize("name", SECRETS)
def test_settings_never_print_a_secret(name, secret_file):
    settings = Settings.model_validate({name: secret_file.read_text().strip()})

    assert "secret-from-a-file" not in repr(settings) + str(settings)


@pytest.mark.parametrize("name", SECRETS)
def test_a_child_process_reads_the_file_itself(name, secret_file):
    settings = Settings.model_validate({f"{name}_file": secret_file})

    assert settings.as_environment() == {f"PROMPTMILL_{name.upper()}_FILE": str(secret_file)}
    assert read_in_a_child(settings) == settings


@pytest.mark.parametrize("name", SECRETS)
def test_the_variable_goes_before_the_file_here_and_in_a_child(name, secret_file):
    own = "redis://:secret-of-our-own@127.0.0.1/0"

    settings = Settings.model_validate({name: own, f"{name}_file": secret_file})

    assert plain(getattr(settings, name)) == own
    assert read_in_a_child(settings) == settings


def test_what_is_secret_is_said_once():
    secret = {name for name, field in Settings.model_fields.items() if "Secret" in str(field)}
    with_files = {name for name in Settings.model_fields if f"{name}_file" in Settings.model_fields}

    assert with_files == set(SECRETS)
    assert {name for name in secret if not name.endswith("_file")} <= set(SECRETS)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe\x00", "holds no text")],
)
@pytest.mark.parametrize("name", SECRETS)
def test_a_file_without_a_secret_is_refused_by_name(name, content, complaint, tmp_path):
    (tmp_path / "secret").write_bytes(content)

    with pytest.raises(ValidationError, match=f"{name}_file: the file {complaint}"):
        Settings.model_validate({f"{name}_file": tmp_path / "secret"})


def test_a_bad_secret_does_not_show_in_the_complaint(tmp_path):
    (tmp_path / "secret").write_text("hunter2")

    with pytest.raises(ValidationError) as refusal:
        Settings(redis_url_file=tmp_path / "secret", admin_key=SecretStr("short"))

    assert "hunter2" not in str(refusal.value)
    assert "short'" not in str(refusal.value)


def test_without_either_there_is_no_key():
    assert Settings().resolved_api_key() is None


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("REDIS_URL", "localhost:6379", "'^rediss?://'"),
        ("API_KEY_FILE", "/no/such/file", "does not point to a file"),
        ("API_PORT", "70000", "less than or equal to 65535"),
        ("LEASE_S", "inf", "finite"),
        ("LEASE_S", "6", "renew_s must be at most half of lease_s"),
        ("API_MAX_WAITERS", "1000", "leave api_threads free"),
        ("KV_BLOCKS", "0", "greater than or equal to 1"),
        ("DTYPE", "float16", "'auto', 'float32' or 'bfloat16'"),
        ("LOG_LEVEL", "loud", "'DEBUG', 'INFO', 'WARNING' or 'ERROR'"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_wanted(monkeypatch, variable, value, complaint):
    monkeypatch.setenv(f"PROMPTMILL_{variable}", value)

    with pytest.raises(ValidationError) as refusal:
        Settings()

    assert complaint in str(refusal.value)


@pytest.mark.parametrize("secret", ["api_key", "webhook_secret"])
def test_a_secret_does_not_show_where_settings_are_printed(secret):
    settings = Settings.model_validate({secret: "hunter2"})

    assert "hunter2" not in f"{settings!r} {settings} {settings.model_dump()}"


def test_every_setting_says_what_it_is_for():
    silent = [name for name, field in Settings.model_fields.items() if not field.description]

    assert silent == []


def test_the_page_of_settings_is_current():
    written = Path(__file__).resolve().parents[2] / "docs" / "settings.md"

    assert written.read_text() == page(), "run `python -m ops.settings_page > docs/settings.md`"
