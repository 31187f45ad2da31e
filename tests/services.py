"""Services that the suite does not start itself: databases, a broker, ZooKeeper, luacheck.

`@pytest.mark.needs("postgres")` or the fixture `service("postgres")` asks for one. It is
looked for at the address of docker-compose.yml, or at that of an environment variable, by talking
to it. When it does not answer the test is skipped and the reason stands in the summary; with
REQUIRE_SERVICES=1 the test fails instead, so that CI cannot turn green by testing nothing.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.addresses import ADDRESSES, address_of
from tests.zookeeper_servers import JAR

PROBE_LIMIT_S = 3


def _probe_postgres(address: str) -> None:
    import psycopg

    psycopg.connect(address, connect_timeout=PROBE_LIMIT_S).close()


def _probe_mariadb(address: str) -> None:
    import pymysql

    parts = urlsplit(address)
    pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path.lstrip("/"),
        connect_timeout=PROBE_LIMIT_S,
    ).close()


def _probe_redis(address: str) -> None:
    import redis

    client = redis.Redis.from_url(
        address, socket_timeout=PROBE_LIMIT_S, socket_connect_timeout=PROBE_LIMIT_S
    )
    try:
        client.ping()
    finally:
        client.close()


def _probe_rabbitmq(address: str) -> None:
    import amqp

    parts = urlsplit(address)
    connection = amqp.Connection(
        host=f"{parts.hostname}:{parts.port or 5672}",
        userid=unquote(parts.username or "guest"),
        password=unquote(parts.password or "guest"),
        virtual_host=unquote(parts.path[1:]) or "/",
        connect_timeout=PROBE_LIMIT_S,
        read_timeout=PROBE_LIMIT_S,
        write_timeout=PROBE_LIMIT_S,
    )
    try:
        connection.connect()
    finally:
        connection.close()


def _probe_zookeeper(address: str) -> None:
    parts = urlsplit(address)
    where = (parts.hostname or "", parts.port or 2181)
    with socket.create_connection(where, timeout=PROBE_LIMIT_S) as connection:
        # "srvr" is the one four-letter command that is allowed by default.
        connection.sendall(b"srvr")
        answer = connection.recv(4096)
    if not answer.startswith(b"Zookeeper version"):
        raise ConnectionError(f"unexpected answer to srvr: {answer[:80]!r}")


def _probe_program(name: str) -> None:
    if shutil.which(name) is None:
        raise FileNotFoundError("no such program on PATH")


def _probe_java(name: str) -> None:
    _probe_program(name)
    if not Path(JAR).exists():
        raise FileNotFoundError(f"no ZooKeeper at {JAR}")


def _probe_tls_server(name: str) -> None:
    _probe_program(name)
    # It ends at once: for want of a certificate, or because it can't speak TLS at all.
    command = [name, "--port", "0", "--tls-port", "1", "--save", ""]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if "tls-cert-file" not in tried.stdout + tried.stderr:
        raise NotImplementedError("built without TLS")


# Each raises when what is at the address does not answer.
PROBES: dict[str, Callable[[str], None]] = {
    "postgres": _probe_postgres,
    "mariadb": _probe_mariadb,
    "redis": _probe_redis,
    "rabbitmq": _probe_rabbitmq,
    "zookeeper": _probe_zookeeper,
    "java": _probe_java,
    "luacheck": _probe_program,
    "iproute2": _probe_program,
    "openssl": _probe_program,
    "tls-server": _probe_tls_server,
}


@functools.cache
def why_absent(name: str) -> str | None:
    """Return None when the service answers, else one line that says what was tried.

    Asked once per process; a service that comes and goes during a run is not catered for.
    """
    address = address_of(name)
    try:
        PROBES[name](address)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises means "not there"
        detail = " ".join(str(error).split())[:160]
        variable, kind = ADDRESSES[name][0], type(error).__name__
        return f"{name} is not there: {address} ({variable}): {kind}: {detail}"
    return None


def require(name: str) -> str:
    """Return the service's address, or skip the running test (fail under REQUIRE_SERVICES=1)."""
    if name not in PROBES:
        pytest.fail(f"unknown service {name!r}; known: {', '.join(PROBES)}", pytrace=False)
    reason = why_absent(name)
    if reason is None:
        return address_of(name)
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(f"REQUIRE_SERVICES=1 and {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def service() -> Callable[[str], str]:
    """Ask for a service by name: `url = service("postgres")`."""
    return require


# First of all set-up, so that an absent service costs a test nothing and leaves nothing half made.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Apply the `needs` marks of a test."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            require(name)
