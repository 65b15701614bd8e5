"""The stack's parts on this machine; the whole of it is tested through the command line."""

import json
import socket
import stat

import httpx
import pytest

from ops.connection import Connection
from ops.folder_lock import FolderInUseError, folder_lock
from ops.settings import Settings
from ops.stack import LocalStack, StackError, free_port, with_models
from ops.stack_secrets import StackSecrets
from ops.supervisor import Supervisor
from queueing.store import connect
from queueing.switches import Switch, SwitchBoard
from queueing.webhook_signature import WebhookSecret


@pytest.fixture
def supervisor(tmp_path):
    with Supervisor(tmp_path / "logs", lambda *_: None) as running:
        yield running


@pytest.fixture
def make_stack(tmp_path, supervisor):
    return lambda **settings: LocalStack(
        Settings(data_dir=tmp_path / "data", **settings), supervisor
    )


def mode_of(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_port_that_somebody_listens_on_is_refused(make_stack):
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        port = somebody.getsockname()[1]

        with pytest.raises(StackError, match=f"port {port} is in use; set PROMPTMILL_API_PORT"):
            make_stack(api_port=port).start_api()


def test_a_part_that_dies_each_time_it_starts_is_given_up_at_once(make_stack, supervisor, tmp_path):
    stack = make_stack(models=[tmp_path / "no-model"], api_port=free_port())

    with pytest.raises(StackError, match=r"api does not live, .* 1, 1; its log: .*/api\.log"):
        stack.start_api()

    assert "no-model/manifest.json" in supervisor.log("api").read_text()


def test_an_installation_that_was_left_draining_starts_all_the_same(make_stack, redis_url):
    with connect(redis_url) as client:
        SwitchBoard(client).flip(Switch.DRAIN, 1)
    stack = make_stack(api_port=free_port(), redis_url=redis_url)

    stack.start_api()

    ready = httpx.get(f"{stack.connection.url}/readyz", trust_env=False)
    assert ready.json() == {"status": "draining"}


def test_a_part_that_cannot_be_started_is_an_error_of_the_stack(make_stack, tmp_path):
    (tmp_path / "logs" / "store.log").mkdir()

    with pytest.raises(StackError, match="store can't be started"):
        make_stack().start_store(tmp_path / "store")


def test_the_models_that_are_named_go_before_those_of_the_settings(tmp_path):
    named, set_before = tmp_path / "named", tmp_path / "set"
    for folder in (named, set_before):
        folder.mkdir()
        (folder / "manifest.json").touch()
    settings = Settings(models=[set_before])

    assert with_models(settings, [named]).models == [named]
    assert with_models(settings).models == [set_before]


def test_a_connection_is_read_as_it_was_written(tmp_path):
    connection = Connection("http://127.0.0.1:8100", "pm-key")

    connection.write(tmp_path / "connection.json")

    assert Connection.read(tmp_path / "connection.json") == connection


def test_a_connection_is_its_users_alone_whatever_lay_there_before(tmp_path):
    (tmp_path / "connection.json").write_text("{}")
    (tmp_path / "connection.json").chmod(0o644)

    Connection("http://127.0.0.1:8100", "pm-key").write(tmp_path / "connection.json")

    assert mode_of(tmp_path / "connection.json") == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["connection.json"]


def test_secrets_that_nobody_gave_are_made_once(tmp_path):
    made = StackSecrets.kept_in(tmp_path)

    assert StackSecrets.kept_in(tmp_path) == made
    assert WebhookSecret.parse(made.webhook_secret).text == made.webhook_secret
    assert mode_of(tmp_path / "secrets.json") == 0o600


def test_secrets_of_two_folders_differ(tmp_path):
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()

    first, second = map(StackSecrets.kept_in, folders)

    assert first.api_key != second.api_key
    assert first.webhook_secret != second.webhook_secret


def test_a_key_that_was_given_goes_before_the_kept_one(make_stack, tmp_path):
    kept = make_stack()
    given = make_stack(api_key="pm-given")

    assert given.connection.api_key == "pm-given"
    assert (
        kept.connection.api_key
        == json.loads((tmp_path / "data/secrets.json").read_text())["api_key"]
    )


def test_a_folder_is_held_by_one_stack_at_a_time(tmp_path):
    folder = tmp_path / "data"

    with folder_lock(folder), pytest.raises(FolderInUseError, match="PROMPTMILL_DATA_DIR"):
        folder_lock(folder).__enter__()

    with folder_lock(folder):
        assert mode_of(folder) == 0o700
