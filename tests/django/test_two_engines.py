"""Two engines in one project: whoever looks, releases, stores or examines reaches both.

Locks of "default" are on one Redis server; those of "payments" on another, behind Sentinels, in a
Cluster, or on ZooKeeper. All servers are real.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from lockapp import lock
from lockapp.audit.sink import EventSink
from lockapp.context import holder_details
from lockapp.exceptions import LeaseLost
from lockapp.handler import locks
from lockapp.lease import Lease
from lockapp.models import EventCursor, LockEvent, LockHold
from tests.clusters import Cluster
from tests.django.children import child_environment
from tests.sentinels import Watched
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.keeps_keys,
    pytest.mark.timeout(180),  # a Cluster or an ensemble is started
]
ROOT = Path(__file__).parents[2]
REDIS, ZOOKEEPER = "lockapp.engines.redis.RedisEngine", "lockapp.engines.zookeeper.ZooKeeperEngine"
# A session lasts as long as the word that it leaves for whom a lock was taken from.
SESSION = {"session_timeout": 60, "tombstone": 1}
PATIENT = {"connect_timeout": scaled(10), "command_timeout": scaled(10)}


@pytest.fixture(scope="module")
def second_redis() -> Iterator[RedisServer]:
    """A server beside the shared one."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """A master and its replica, behind a Sentinel that sees no failure."""
    with Watched(replicas=1, sentinels=1, down_after_s=60) as service:
        yield service


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three masters that share the slots."""
    with Cluster() as made:
        yield made


@pytest.fixture(
    params=[
        "redis",
        "sentinel",
        "cluster",
        pytest.param("zookeeper", marks=pytest.mark.needs("java")),
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    """What the second engine is."""
    return str(request.param)


@pytest.fixture
def project(
    request: pytest.FixtureRequest, kind: str, settings: Any, redis_url: str, prefix: str
) -> Iterator[str]:
    """Put "default" on the shared Redis server and "payments" elsewhere; yields what that is."""
    server = {
        "redis": "second_redis", "sentinel": "watched", "cluster": "cluster",
        "zookeeper": "zookeeper_server",
    }  # fmt: skip
    url = request.getfixturevalue(server[kind]).url
    options = {"prefix": prefix, **PATIENT}
    settings.LOCKAPP = {
        "default": {"ENGINE": REDIS, "LOCATION": redis_url, "OPTIONS": options},
        "payments": {
            "ENGINE": ZOOKEEPER if kind == "zookeeper" else REDIS,
            "LOCATION": url,
            "OPTIONS": {**options, **(SESSION if kind == "zookeeper" else {})},
        },
    }
    yield kind
    locks.close_all()


@pytest.fixture
def held(project: str) -> Iterator[dict[str, Lease]]:
    """One lock on each engine, of one name, held by different people."""
    leases = {}
    for alias, user in (("default", "carol"), ("payments", "dave")):
        with holder_details(task=f"{alias}.task", user=user):
            leases[alias] = lock("order", 42, using=alias, wait=0, ttl=20).acquire()
    yield leases
    for lease in leases.values():
        with contextlib.suppress(LeaseLost):
            lease.release()


@pytest.fixture
def operator() -> Client:
    """May do everything."""
    User.objects.create_superuser("olga", password="x")
    client = Client()
    client.force_login(User.objects.get(username="olga"))
    return client


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("lockapp", *arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def page(client: Client, **query: str) -> str:
    answer = client.get(reverse("admin:lockapp_livelock_changelist"), query)
    assert answer.status_code == 200
    return str(answer.content.decode())


def lost(lease: Lease) -> None:
    """Wait until its holder has heard."""
    wait_until(lambda: lease.lost_reason == "forced", limit_s=15, what="the holder to be told")
    with pytest.raises(LeaseLost):
        lease.check()


# ------------------------------------------------------------------ looking


def test_a_name_is_a_lock_of_its_own_on_each_engine(held: dict[str, Lease]) -> None:
    """Held on both, by different people; released on one, held on the other."""
    held["default"].release()
    assert locks["default"].show("order:42") is None
    assert locks["payments"].show("order:42").holders[0].fence == held["payments"].fence
    held["payments"].check()


def test_the_page_of_live_locks_shows_both(held: dict[str, Lease], operator: Client) -> None:
    """Each under its alias, and each page leads to the other; the first is shown unasked."""
    for alias, user, other in (("default", "carol", "dave"), ("payments", "dave", "carol")):
        shown = page(operator, using=alias)
        assert user in shown
        assert other not in shown
        assert str(held[alias].fence) in shown
        assert '<a href="?using=default"' in shown
        assert '<a href="?using=payments"' in shown
        one = page(operator, using=alias, name="order:42")
        assert f"{alias}.task" in one
        assert "Nobody waits." in one
    assert "carol" in page(operator)


def test_list_and_show_reach_both(held: dict[str, Lease]) -> None:
    """By --using; without it, the first."""
    for alias, user in (("default", "carol"), ("payments", "dave")):
        assert user in run("list", "--using", alias)
        assert user in run("watch", "--once", "--using", alias)
        (one,) = json.loads(run("list", "--using", alias, "--json"))["locks"]
        assert one["holders"][0]["fence"] == held[alias].fence
        shown = json.loads(run("show", "order:42", "--using", alias, "--json"))
        assert shown["holders"][0]["person"]["user"] == user
    assert "carol" in run("list")


# ------------------------------------------------------------------ releasing


@pytest.mark.parametrize("alias", ["default", "payments"])
def test_release_takes_the_lock_from_the_holder_on_that_engine(
    held: dict[str, Lease], alias: str
) -> None:
    """The other holder keeps its own; who did it and why is stored, whichever engine it was."""
    other = held["payments" if alias == "default" else "default"]
    fence = str(held[alias].fence)
    run("revoke", "order:42", "--fence", fence, "--reason", "soon", "--using", alias)
    wait_until(lambda: held[alias].revoke_requested, limit_s=15, what="the request")
    arguments = ("release", "order:42", "--fence", fence, "--reason", "stuck", "--yes")
    assert "was taken away" in run(*arguments, "--using", alias)
    lost(held[alias])
    assert other.live
    if not locks[alias].events_in_process:
        run("collect")
    forced = LockEvent.objects.get(kind=LockEvent.Kind.FORCED)
    assert (forced.alias, forced.reason, forced.fence) == (alias, "stuck", held[alias].fence)
    assert LockEvent.objects.filter(kind=LockEvent.Kind.REVOKED, alias=alias).count() == 1


@pytest.mark.parametrize("alias", ["default", "payments"])
def test_the_page_releases_on_that_engine(
    held: dict[str, Lease], operator: Client, alias: str
) -> None:
    """The form carries the alias, and the answer leads back to its page."""
    where = reverse("admin:lockapp_livelock_release")
    form = {"using": alias, "name": "order:42", "fence": held[alias].fence}
    assert operator.get(where, form).status_code == 200
    answer = operator.post(where, {**form, "reason": "stuck"})
    assert answer.status_code == 302
    assert f"using={alias}" in answer.headers["Location"]
    lost(held[alias])
    assert held["payments" if alias == "default" else "default"].live
    assert "No lock is held." in page(operator, using=alias)


def manage(tmp_path: Path, *arguments: str) -> str:
    """Run the command as an operator does, in a process of its own; return what it printed."""
    (tmp_path / "two_engines.py").write_text(
        f"from tests.settings import *\nLOCKAPP = {django_settings.LOCKAPP!r}\n"
    )
    environment = child_environment(
        DJANGO_SETTINGS_MODULE="two_engines", PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)])
    )
    command = [sys.executable, "manage.py", "lockapp", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False,
        timeout=scaled(60),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_a_process_of_its_own_did_is_stored_before_it_ends(
    held: dict[str, Lease], tmp_path: Path
) -> None:
    """Where the server keeps no events, nobody else could do it."""
    fence = str(held["payments"].fence)
    using = ("--using", "payments")
    assert "dave" in manage(tmp_path, "list", *using)
    arguments = ("release", "order:42", "--fence", fence, "--reason", "stuck", "--yes")
    assert "was taken away" in manage(tmp_path, *arguments, *using)
    lost(held["payments"])
    if not locks["payments"].events_in_process:
        run("collect")
    forced = LockEvent.objects.get(kind=LockEvent.Kind.FORCED)
    assert (forced.alias, forced.reason) == ("payments", "stuck")
    if locks["payments"].events_in_process:
        assert EventCursor.objects.get(alias="payments").ended


# ------------------------------------------------------------------ storing and judging


def test_the_history_of_both_is_stored_and_judged(project: str) -> None:
    """By a collector where the server has a stream, by the process's own sink where it has none."""
    with EventSink(interval=0.05):
        for alias in ("default", "payments"):
            for _ in range(2):
                with lock("order", 42, using=alias, wait=5, ttl=20):
                    pass
        run("collect")
    for alias in ("default", "payments"):
        assert LockEvent.objects.filter(alias=alias).count() == 4
        ended = LockHold.objects.filter(alias=alias, ended="released").order_by("fence")
        assert ended.count() == 2
    assert run("verify").startswith("8 events replayed, no fault")
    assert run("verify", "--using", "payments").startswith("4 events replayed, no fault")
    run("sweep")
    assert "8 lock events removed" not in run("prune", "--events", "1")


def test_collecting_leaves_no_trace_of_the_one_that_collects(project: str) -> None:
    """Were its own, empty log stored, it would look like a process that died with events in it."""
    run("collect")
    own = EventCursor.objects.filter(alias="payments", ended=False)
    assert own.count() == (0 if project == "zookeeper" else locks["payments"].shards)


# ------------------------------------------------------------------ examining


def test_doctor_examines_both(project: str) -> None:
    """Each server is named, with its version and how far away it is."""
    out = io.StringIO()
    call_command("lockapp", "doctor", "--json", stdout=out)
    said = json.loads(out.getvalue())
    assert [each["engine"] for each in said["engines"]] == ["default", "payments"]
    for each in said["engines"]:
        assert each["version"][0].isdigit()
        assert each["round_trip_ms"] > 0
        assert each["server"]
    grave = [each for each in said["findings"] if each["level"] == "ERROR"]
    assert grave == []


def test_checks_judge_both(project: str, settings: Any) -> None:
    """Also when they are deployed; two aliases of one place and prefix are told."""
    out = io.StringIO()
    call_command("check", "--deploy", "--tag", "lockapp", stdout=out, stderr=out)
    assert "lockapp.E" not in out.getvalue()
    assert "lockapp.W001" not in out.getvalue()
    settings.LOCKAPP = {**settings.LOCKAPP, "third": settings.LOCKAPP["payments"]}
    out = io.StringIO()
    call_command("check", "--tag", "lockapp", stdout=out, stderr=out)
    assert out.getvalue().count("lockapp.W001") == 1
    assert "'payments' and 'third'" in out.getvalue()


@pytest.mark.parametrize(
    "kind", ["redis", pytest.param("zookeeper", marks=pytest.mark.needs("java"))]
)
def test_one_that_is_down_hides_nothing_of_the_other(
    held: dict[str, Lease], operator: Client, settings: Any, kind: str
) -> None:
    """Pages, doctor and checks tell of it; the other is looked at and released as ever."""
    held["payments"].release()
    nowhere = {"redis": "redis://:s3cret@127.0.0.1:1/0", "zookeeper": "zk://a:s3cret@127.0.0.1:1"}
    payments = settings.LOCKAPP["payments"]
    options = {**payments["OPTIONS"], "connect_timeout": scaled(1), "command_timeout": scaled(1)}
    down = {**payments, "LOCATION": nowhere[kind], "OPTIONS": options}
    settings.LOCKAPP = {**settings.LOCKAPP, "payments": down}
    assert "carol" in page(operator)
    answer = operator.get(reverse("admin:lockapp_livelock_changelist"), {"using": "payments"})
    assert answer.status_code == 503
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command("lockapp", "doctor", "--json", stdout=out)
    call_command("check", "--deploy", "--tag", "lockapp", stdout=out, stderr=out)
    assert '"unreachable"' in out.getvalue()
    assert "lockapp.W007" in out.getvalue()
    assert "s3cret" not in out.getvalue()
    with pytest.raises(CommandError) as refused:
        run("list", "--using", "payments")
    assert refused.value.returncode == 3
    fence = str(held["default"].fence)
    run("release", "order:42", "--fence", fence, "--reason", "stuck", "--yes")
