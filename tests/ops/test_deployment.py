"""Compose, images and units run commands, settings and graces that exist."""

import shlex
import tomllib
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from packaging.requirements import Requirement

from ops.cli import main
from ops.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("api", "engine", "cpu", "beat", "flower")
UNITS = tuple(f"promptmill-{part}.service" for part in ("api", "engine@", "cpu", "beat", "flower"))
WATCHED = ("redis", "api", "engine", "cpu", "flower")
DEFAULTS = Settings.model_construct()


@pytest.fixture(scope="session")
def services() -> dict[str, Any]:
    """Read the services of docker-compose.yml, anchors resolved."""
    return services_in("docker-compose.yml")


def test_compose_runs_the_whole_stack(services):
    always = {name for name, service in services.items() if "profiles" not in service}

    assert always == {"redis", *PARTS}


@pytest.mark.parametrize("part", PARTS)
def test_each_service_runs_a_command_of_promptmill(services, part):
    command = command_named(services[part]["command"])

    assert command.callback is not None


@pytest.mark.parametrize("part", PARTS)
def test_each_variable_of_a_service_is_a_setting(services, part):
    unknown = [name for name in services[part]["environment"] if not is_setting(name)]

    assert unknown == []


@pytest.mark.parametrize("part", PARTS)
def test_a_service_may_take_longer_to_stop_than_a_worker_to_drain(services, part):
    assert seconds(services[part]["stop_grace_period"]) > DEFAULTS.grace_s + DEFAULTS.renew_s


@pytest.mark.parametrize("part", PARTS)
def test_a_service_has_no_rights_and_writes_only_where_it_must(services, part):
    service = services[part]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "/models:ro" in service["volumes"][0]


@pytest.mark.parametrize("name", WATCHED)
def test_a_service_that_listens_is_asked_whether_it_is_well(services, name):
    assert services[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", ["api", "redis"])
def test_only_this_machine_reaches_a_published_port(services, name):
    assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])


@pytest.mark.parametrize("name", [*PARTS, "model"])
def test_each_image_is_a_target_of_the_dockerfile(services, name):
    dockerfile = (REPOSITORY / services[name]["build"]["dockerfile"]).read_text()

    assert f" AS {services[name]['build']['target']}\n" in dockerfile


@pytest.mark.parametrize("target", ["light", "engine"])
def test_images_run_without_root(target):
    text = (REPOSITORY / "ops" / "docker" / "Dockerfile").read_text()
    stages = dict(stage.split("\n", 1) for stage in text.split("\nFROM ")[1:])
    users = [
        line
        for stage in ("python:${PYTHON} AS runtime", f"runtime AS {target}")
        for line in stages[stage].splitlines()
        if line.startswith("USER ")
    ]

    assert users[-1] == "USER 10001"


def test_the_gpu_is_given_to_the_engine_and_set_by_what_settings_know(services):
    (name, engine), *others = services_in("ops/docker/gpu.yml").items()
    (device,) = engine["deploy"]["resources"]["reservations"]["devices"]
    set_ = {
        key.removeprefix("PROMPTMILL_").lower(): text for key, text in engine["environment"].items()
    }

    assert (name, others) == ("engine", [])
    assert name in services
    assert device["capabilities"] == ["gpu"]
    assert Settings.model_validate(set_).device == "cuda"


@pytest.mark.parametrize("name", UNITS)
def test_each_unit_runs_a_command_of_promptmill(name):
    program, *arguments = shlex.split(unit(name)["ExecStart"])

    assert program.endswith("/bin/promptmill")
    assert command_named(arguments).callback is not None


@pytest.mark.parametrize("name", ["promptmill-engine@.service", "promptmill-cpu.service"])
def test_a_worker_unit_may_take_longer_to_stop_than_the_worker_to_drain(name):
    assert int(unit(name)["TimeoutStopSec"]) > DEFAULTS.grace_s + DEFAULTS.renew_s


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_that_died_is_started_again(name):
    assert unit(name)["Restart"] == "always"


def test_each_variable_of_the_units_is_a_setting():
    text = (REPOSITORY / "ops" / "systemd" / "promptmill.env.example").read_text()
    names = [line.split("=")[0] for line in text.splitlines() if not line.startswith("#")]

    assert [name for name in names if not is_setting(name)] == []


@pytest.mark.parametrize("name", ["cpu.lock", "cuda.lock"])
def test_every_declared_dependency_is_locked_at_a_version_that_fits(name):
    locked = dict(package.split()[0].split("==") for package in requirements(name))

    missed = [wanted for wanted in declared() if not wanted.specifier.contains(locked[wanted.name])]

    assert missed == []


@pytest.mark.parametrize(
    "name", ["cpu.lock", "cuda.lock", "light.lock", "model.lock", "triton.lock"]
)
def test_every_locked_package_has_a_hash(name):
    packages = requirements(name)

    assert packages
    assert [package for package in packages if "--hash=sha256:" not in package] == []


def test_the_light_images_have_the_versions_of_the_full_lock():
    assert requirements("light.lock") <= requirements("cuda.lock")


def test_the_interpreter_of_gpu_kernels_is_the_compiler_that_cuda_machines_have():
    assert requirements("triton.lock") <= requirements("cuda.lock")


def test_the_light_images_have_no_torch():
    assert [package for package in requirements("light.lock") if package.startswith("torch")] == []


def test_both_full_locks_pin_the_same_torch():
    cpu = next(package for package in requirements("cpu.lock") if package.startswith("torch=="))
    cuda = next(package for package in requirements("cuda.lock") if package.startswith("torch=="))

    assert cpu.split()[0] == f"{cuda.split()[0]}+cpu"


def services_in(path: str) -> dict[str, Any]:
    services = yaml.safe_load((REPOSITORY / path).read_text())["services"]
    assert isinstance(services, dict)
    return services


def command_named(arguments: list[str]) -> click.Command:
    """Find the command that promptmill runs for `arguments`; fail when it has no such option."""
    command: click.Command = main
    rest = arguments
    while isinstance(command, click.Group):
        command = command.commands[rest[0]]
        rest = rest[1:]
    command.make_parser(click.Context(command)).parse_args(list(rest))
    return command


def is_setting(variable: str) -> bool:
    return variable.removeprefix("PROMPTMILL_").lower() in Settings.model_fields


def seconds(duration: str) -> float:
    assert duration.endswith("s")
    return float(duration[:-1])


def unit(name: str) -> dict[str, str]:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    parser.read_string((REPOSITORY / "ops" / "systemd" / name).read_text())
    return dict(parser["Service"])


def declared() -> list[Requirement]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


def requirements(name: str) -> set[str]:
    text = (REPOSITORY / "ops" / "locks" / name).read_text().replace(" \\\n", " ")
    return {line for line in text.splitlines() if line and not line.startswith("#")}
