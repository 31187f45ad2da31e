"""``manage.py lockapp doctor``: each fault of a real server or of the settings, and its cure."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError

from lockapp.audit import collector
from lockapp.core.options import EngineOptions
from lockapp.engines.health import judge_trips
from lockapp.engines.redis import examination
from lockapp.engines.redis.address import Address
from lockapp.engines.redis.examination import judge_state
from lockapp.handler import locks
from lockapp.lock import Lock
from lockapp.management import diagnosis
from tests.proxy import TcpProxy
from tests.servers import RedisServer
from tests.timing import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    """One server for all that can be set right again; it keeps a log of its writes."""
    with RedisServer("--appendonly", "yes") as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer, settings: Any) -> Iterator[RedisServer]:
    """The same, empty, healthy, and the one that keeps this site's locks."""
    settings.LOCKAPP = {"default": {"LOCATION": shared_server.url}}
    yield shared_server
    locks.close_all()
    client = shared_server.client
    client.replicaof("NO", "ONE")
    for name, value in (
        ("maxmemory", "0"), ("maxmemory-policy", "noeviction"), ("appendonly", "yes"),
        ("save", ""), ("maxclients", "10000"),
    ):  # fmt: skip
        client.config_set(name, value)
    client.acl_deluser("limited")
    client.flushall()


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and what ``doctor --json`` says."""
    out = io.StringIO()
    code = 0
    try:
        call_command("lockapp", "doctor", "--json", *arguments, stdout=out, stderr=out)
    except CommandError as error:
        code = error.returncode
    said: dict[str, Any] = json.loads(out.getvalue())
    return code, said


def found(*arguments: str) -> list[tuple[str, str]]:
    """Return level and kind of each finding, in the order told; the exit code must agree."""
    code, said = doctor(*arguments)
    kinds = [(each["level"], each["kind"]) for each in said["findings"]]
    assert all(each["cure"] for each in said["findings"])
    assert (code == 5) == ("ERROR" in [level for level, _ in kinds])
    return kinds


# ------------------------------------------------------------------ a healthy site


def test_a_healthy_site_has_no_finding(server: RedisServer) -> None:
    """And its servers are named, with how far away they are."""
    code, said = doctor()
    assert (code, said["findings"]) == (0, [])
    (engine,) = said["engines"]
    assert engine["engine"] == "default"
    assert str(server.port) in engine["server"]
    assert engine["version"][0].isdigit()
    assert engine["round_trip_ms"] > 0


def test_it_leaves_nothing_but_the_events_of_its_own_lock(server: RedisServer) -> None:
    doctor()
    assert [event.name.partition(":")[0] for event in locks["default"].read_events()] == [
        diagnosis.PROBE
    ] * 2
    lasting = {"fence", "events", "number", "counts", "meta"}
    assert {key.rpartition(":")[2] for key in server.client.scan_iter()} <= lasting


# ------------------------------------------------------------------ faults of the server


def test_a_server_that_is_not_there(server: RedisServer, settings: Any) -> None:
    settings.LOCKAPP = {"default": {"LOCATION": "redis://:s3cret@127.0.0.1:1/0"}}
    assert found() == [("ERROR", "unreachable")]
    assert "s3cret" not in json.dumps(doctor()[1])


def test_a_wrong_password(server: RedisServer, settings: Any) -> None:
    """Is told in the server's words."""
    url = server.url.replace("//", "//nobody:s3cret@")
    settings.LOCKAPP = {"default": {"LOCATION": url}}
    assert found() == [("ERROR", "unreachable")]
    said = json.dumps(doctor()[1])
    assert "username-password pair" in said
    assert "s3cret" not in said


def evicts(server: RedisServer) -> None:
    server.config(maxmemory_policy="allkeys-lru")


def keeps_nothing(server: RedisServer) -> None:
    server.config(appendonly="no")


def keeps_snapshots(server: RedisServer) -> None:
    server.config(appendonly="no", save="3600 1")


def is_a_replica(server: RedisServer) -> None:
    server.client.replicaof("127.0.0.1", "1")


def is_nearly_full(server: RedisServer) -> None:
    # So that what is left is enough for a few locks; no buffer is as long as that.
    server.client.setrange("ballast", 8_000_000, "x")
    used = int(server.client.info("memory")["used_memory"])
    server.config(maxmemory=int(used * 1.08))


def runs_out_of_memory(server: RedisServer) -> None:
    server.config(maxmemory="1")


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (evicts, [("ERROR", "eviction")]),
        (keeps_nothing, [("WARNING", "forgets")]),
        (keeps_snapshots, [("INFO", "snapshots")]),
        (is_a_replica, [("ERROR", "replica")]),
        (is_nearly_full, [("WARNING", "memory")]),
        (runs_out_of_memory, [("ERROR", "refused"), ("WARNING", "memory")]),
    ],
)
def test_what_is_wrong_with_a_server(
    server: RedisServer, harm: Callable[[RedisServer], None], told: list[tuple[str, str]]
) -> None:
    """Exactly that, the gravest first."""
    assert found() == []
    locks.close_all()
    harm(server)
    assert found() == told


@pytest.mark.parametrize(
    ("rights", "kinds", "named"),
    [
        ("-blpop -xtrim -subscribe", ["permission"], "BLPOP, XTRIM, SUBSCRIBE"),
        ("-zadd", ["refused"], "grant.lua"),
        ("-eval -evalsha", ["permission", "refused"], "EVALSHA, EVAL"),
        ("-info", ["permission"], "INFO"),
        ("resetkeys ~other:*", ["permission", "refused"], "ZCARD"),
    ],
)
def test_a_user_that_may_not_do_it_all(
    server: RedisServer, settings: Any, rights: str, kinds: list[str], named: str
) -> None:
    """Each command is named, also one that a script gives."""
    client = server.client
    client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "&*", "+@all")
    client.execute_command("ACL", "SETUSER", "limited", *rights.split())
    settings.LOCKAPP = {"default": {"LOCATION": server.url.replace("//", "//limited:pw@")}}
    _, said = doctor()
    assert [each["kind"] for each in said["findings"]] == kinds
    assert named.lower() in said["findings"][0]["text"].lower()


def test_fewer_replicas_than_a_lease_must_reach(server: RedisServer, settings: Any) -> None:
    options = {"min_replicas_acked": 1, "command_timeout": 0.3}
    settings.LOCKAPP = {"default": {"LOCATION": server.url, "OPTIONS": options}}
    assert found() == [("ERROR", "replicas"), ("ERROR", "refused")]


def test_a_node_of_a_cluster(settings: Any) -> None:
    with RedisServer("--cluster-enabled", "yes", "--appendonly", "yes") as node:
        settings.LOCKAPP = {"default": {"LOCATION": node.url}}
        assert found() == [("ERROR", "cluster")]
        locks.close_all()


def test_a_server_that_is_far_away(server: RedisServer) -> None:
    """Beside what a lease allows."""
    with TcpProxy(server.port) as far:
        far.delay(0.02)
        address = Address.from_url(far.url)
        patient = EngineOptions(connect_timeout_ms=60_000, command_timeout_ms=60_000)
        assert examination.examine(address, replace(patient, ttl_ms=300_000)).problems == []
        (problem,) = examination.examine(address, replace(patient, ttl_ms=450)).problems
        assert problem.kind in ("slow", "too slow")
        assert "150 ms is the most" in problem.detail


def test_a_server_with_nearly_no_connection_left(server: RedisServer) -> None:
    """Before the last one is gone."""
    with ExitStack() as others:
        for _ in range(60):
            others.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        wait_until(lambda: server.client.info("clients")["connected_clients"] > 60)
        server.config(maxclients=66)
        assert found() == [("WARNING", "clients")]


@pytest.mark.parametrize(
    ("slowest_s", "kind"), [(0.19, None), (0.21, "slow"), (0.9, "slow"), (1.1, "too slow")]
)
def test_how_slow_is_too_slow(slowest_s: float, kind: str | None) -> None:
    """Of a command timeout of two seconds a tenth is worth a word, and half of it too much."""
    options = EngineOptions(command_timeout_ms=2000, ttl_ms=30_000)
    assert [each.kind for each in judge_trips(slowest_s, options)] == ([kind] if kind else [])


def test_a_server_that_is_too_old(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As told by what it says of itself. No such server can be started here."""
    read = examination.info
    older = {"redis_version": "6.2.14"}
    monkeypatch.setattr(examination, "info", lambda reply: read(reply) | older)
    assert found() == [("ERROR", "version")]


def test_a_disk_that_failed() -> None:
    """As told by what the server says of itself."""
    failed = {"aof_enabled": "1", "aof_last_write_status": "err", "rdb_last_bgsave_status": "err"}
    (problem,) = judge_state(failed, None)
    assert problem == ("unsaved", "aof_last_write_status: err")
    kinds = [each.kind for each in judge_state({"rdb_last_bgsave_status": "err"}, True)]
    assert kinds == ["unsaved", "snapshots"]


@pytest.mark.parametrize(("ahead_s", "told"), [(0.5, ""), (90, "behind"), (-90, "ahead of")])
def test_clocks_that_differ(server: RedisServer, ahead_s: float, told: str) -> None:
    """This host's clock is the one that is wrong here."""
    engine = locks["default"]
    seen = examination.examine(engine.address, engine.options, lambda: time.time() + ahead_s)  # type: ignore[attr-defined]
    assert [each.kind for each in seen.problems] == (["clock"] if told else [])
    assert all(told in each.detail for each in seen.problems)


# ------------------------------------------------------------------ what nobody looks after


def test_leases_that_nobody_reclaims(server: RedisServer) -> None:
    """For more than a minute. The index has them by when they ran out."""
    ago_ms = {f"order:{seconds}": int((time.time() - seconds) * 1000) for seconds in (30, 90)}
    server.client.zadd("lockapp:{0}:held", ago_ms)
    (unswept,) = doctor()[1]["findings"]
    assert unswept["text"].startswith("1 locks ran out")
    locks["default"].sweep()
    assert found() == []


def test_events_that_nobody_collects(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the age of the oldest; and once half of the stream is full."""
    engine = locks["default"]
    for _ in range(3):
        Lock(engine, "order:1", wait=0).acquire().release()
    assert found() == []
    monkeypatch.setattr(diagnosis, "LAG_S", 0)
    assert found() == [("WARNING", "lag")]
    collector.collect(engine)
    monkeypatch.setattr(diagnosis, "_try_a_lock", lambda engine: iter(()))
    assert found() == []
    Lock(engine, "order:1", wait=0).acquire().release()
    (lag,) = doctor()[1]["findings"]
    assert "; 2 wait" in lag["text"]


def test_a_stream_that_overflows(server: RedisServer, settings: Any) -> None:
    settings.LOCKAPP = {"default": {"LOCATION": server.url, "OPTIONS": {"event_cap": 8}}}
    for _ in range(3):
        Lock(locks["default"], "order:1", wait=0).acquire().release()
    assert found() == [("ERROR", "overflow")]
    collector.collect(locks["default"])
    assert found() == []


def test_a_database_that_cannot_be_read(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is a finding as any other."""

    def fail(*args: Any) -> Any:
        raise DatabaseError("no such table")

    monkeypatch.setattr(diagnosis.EventCursor.objects, "using", fail)
    monkeypatch.setattr(diagnosis, "check_fences", fail)
    assert found() == [("ERROR", "audit")]


# ------------------------------------------------------------------ settings


def test_what_checks_say_is_told_too(server: RedisServer, settings: Any) -> None:
    """With their ids and hints; silenced ones not."""
    settings.LOCKAPP = {
        "default": {"LOCATION": server.url, "OPTIONS": {"ttl": 1}},
        "other": {"LOCATION": server.url, "OPTIONS": {"ttl": 1}},
    }
    ids = [("WARNING", "lockapp.W001"), ("WARNING", "lockapp.W004"), ("WARNING", "lockapp.W004")]
    assert sorted(found()) == ids
    settings.SILENCED_SYSTEM_CHECKS = ["lockapp.W004"]
    assert found() == ids[:1]
    assert len(doctor()[1]["engines"]) == 2
    assert len(doctor("--using", "other")[1]["engines"]) == 1


@pytest.mark.parametrize(
    ("given", "kind"), [(None, "E001"), ({"default": {"LOCATION": 5}}, "E002")]
)
def test_settings_that_make_no_sense_are_a_finding(settings: Any, given: Any, kind: str) -> None:
    """Not an exception."""
    settings.LOCKAPP = given
    assert found() == [("ERROR", f"lockapp.{kind}")]


# ------------------------------------------------------------------ what it prints


def test_in_words_each_finding_has_its_cure(server: RedisServer) -> None:
    """The level that fails can be chosen."""
    evicts(server)
    keeps_nothing(server)
    out = io.StringIO()
    with pytest.raises(CommandError, match="1 of 2 findings need you") as error:
        call_command("lockapp", "doctor", stdout=out, stderr=out, no_color=True)
    assert error.value.returncode == 5
    lines = out.getvalue().splitlines()
    assert lines[0].startswith(f"default: 127.0.0.1:{server.port}/0, version ")
    assert lines[1].startswith("ERROR    default: The server may evict locks")
    assert lines[2].strip() == "→ Set maxmemory-policy noeviction on the server that keeps locks."
    assert lines[3].startswith("WARNING  default: The server keeps nothing on disk")
    server.config(maxmemory_policy="noeviction")
    assert doctor()[0] == 0
    assert doctor("--fail-level", "WARNING")[0] == 5


def test_in_words_a_healthy_site_is_two_lines(server: RedisServer) -> None:
    out = io.StringIO()
    call_command("lockapp", "doctor", stdout=out, stderr=out, no_color=True)
    assert out.getvalue().splitlines()[1:] == ["Nothing was found that endangers locks."]
