"""docker-compose.yml is valid and offers what the tests and the documentation name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from ruamel.yaml import YAML

from tests.addresses import ADDRESSES

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, object]]:
    """The services by name."""
    parsed: dict[str, dict[str, dict[str, object]]] = YAML(typ="safe").load(COMPOSE)
    return parsed["services"]


def test_the_file_follows_the_compose_specification() -> None:
    """Checked against the schema that check-jsonschema ships."""
    command = [sys.executable, "-m", "check_jsonschema"]
    command += ["--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "profile", ["single", "sentinel", "cluster", "redlock", "zookeeper", "services", "demo"]
)
def test_each_profile_has_a_service(profile: str, services: dict[str, dict[str, object]]) -> None:
    """The profiles are part of the documentation."""
    used = {name for each in services.values() for name in each.get("profiles", [])}  # type: ignore[attr-defined]
    assert profile in used


def test_every_service_waits_for_health(services: dict[str, dict[str, object]]) -> None:
    """`docker compose up --wait` returns when the service answers, not when it was started."""
    assert [
        name for name in services if name != "demo" and "healthcheck" not in services[name]
    ] == []


def test_ports_are_published_on_loopback_only(services: dict[str, dict[str, object]]) -> None:
    """The services have no passwords, so nobody else on the network may reach them."""
    ports = [port for each in services.values() for port in each.get("ports", [])]  # type: ignore[attr-defined]
    assert ports
    assert [port for port in ports if not str(port).startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", [n for n, each in ADDRESSES.items() if "://" in each[1]])
def test_the_suite_looks_where_compose_publishes(
    name: str, services: dict[str, dict[str, object]]
) -> None:
    """The default address of each service is one of this file's ports."""
    ports = [port for each in services.values() for port in each.get("ports", [])]  # type: ignore[attr-defined]
    port = urlsplit(ADDRESSES[name][1]).port
    assert f"127.0.0.1:{port}:{port}" in ports
