"""``manage.py lockapp``: what it prints, what it does, and its exit codes; on a real server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import BaseCommand, CommandError, call_command
from django.db import DatabaseError

from lockapp.audit import event, history
from lockapp.context import holder_details
from lockapp.exceptions import LeaseLost
from lockapp.handler import locks
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.management.commands.lockapp import SUBCOMMANDS, Command
from lockapp.management.diagnosis import CURES
from lockapp.management.subcommands.base import until_told
from lockapp.management.subcommands.doctoring import LEVELS
from lockapp.models import LockEvent
from lockapp.naming import lock_name
from tests.contract.processes import freeze
from tests.django.children import child_environment
from tests.servers import RedisServer
from tests.timing import scaled, wait_until

ROOT = Path(__file__).parents[2]
NAME = lock_name("订单", 7)
taken_away = pytest.mark.keeps_keys  # the tombstone by which the holder learns who took its lock


@pytest.fixture
def engine(redis_locks: Any) -> Any:
    """The engine that the command asks."""
    return redis_locks["default"]


@pytest.fixture
def held(engine: Any) -> Iterator[Lease]:
    """A lock that somebody holds."""
    with holder_details(task="shop.report", task_id="t-77", user="carol"):
        lease = Lock(engine, NAME, wait=0).acquire()
    yield lease
    with contextlib.suppress(LeaseLost):
        lease.release()


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("lockapp", *arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def refused(*arguments: str) -> tuple[int, str]:
    """Return the exit code and the message of a command that fails, after what it printed."""
    out = io.StringIO()
    with pytest.raises(CommandError) as error:
        call_command("lockapp", *arguments, stdout=out, stderr=out, no_color=True)
    return error.value.returncode, out.getvalue() + str(error.value)


# ------------------------------------------------------------------ looking


def test_list_prints_every_holder(held: Lease) -> None:
    """With the name to copy, what it reads, the fence and who it is."""
    printed = run("list")
    for text in (NAME, "(订单:7)", str(held.fence), "shop.report, carol"):
        assert text in printed


def test_list_of_nothing_is_no_failure(engine: Any) -> None:
    """And in JSON an empty list."""
    assert run("list") == "No lock is held.\n"
    assert json.loads(run("list", "--json"))["locks"] == []


def test_list_is_bounded_and_says_so(engine: Any) -> None:
    """By --limit."""
    leases = [Lock(engine, f"order:{number}", wait=0).acquire() for number in range(3)]
    printed = run("list", "--limit", "2")
    assert len(re.findall(r"order:\d", printed)) == 2
    assert "of 3 locks" in printed
    for lease in leases:
        lease.release()


def test_json_says_the_same_as_the_page(held: Lease) -> None:
    """For scripts: plain values with units in their names."""
    for lock in (
        json.loads(run("list", "--json"))["locks"][0],
        json.loads(run("show", NAME, "--json")),
    ):
        assert (lock["name"], lock["readable"], lock["family"]) == (NAME, "订单:7", "订单")
        (holder,) = lock["holders"]
        assert holder["fence"] == held.fence
        assert holder["ttl_s"] == 30
        assert 0 < holder["remaining_s"] <= 30
        assert re.match(r"\d{4}-\d\d-\d\dT", holder["since"])
        assert holder["person"]["user"] == "carol"


@pytest.mark.parametrize("name", [NAME, "订单:7"])
def test_show_takes_a_name_as_stored_or_as_read(held: Lease, name: str) -> None:
    """Nobody types percent signs."""
    printed = run("show", name)
    for text in (NAME, "订单:7", str(held.fence), "shop.report", "t-77", "carol", "time left"):
        assert text in printed


def test_show_of_a_free_lock_exits_with_1(engine: Any) -> None:
    """So that a script can ask."""
    assert refused("show", "order:1") == (1, "Nobody holds order:1; nothing was done.")


def test_what_a_holder_says_of_itself_can_not_drive_the_terminal(engine: Any) -> None:
    """No escape sequences, no forged lines."""
    with holder_details(path="/\x1b[2J", user="a\nroot"):
        lease = Lock(engine, "x", wait=0).acquire()
    for printed in (run("list"), run("show", "x")):
        assert "\x1b" not in printed
        assert r"\x1b[2J" in printed
        assert r"a\nroot" in printed
    lease.release()


# ------------------------------------------------------------------ releasing


@taken_away
@pytest.mark.django_db
def test_release_names_the_fence_and_is_audited(held: Lease, engine: Any) -> None:
    """By whom is the user of the shell."""
    printed = run("release", NAME, "--fence", str(held.fence), "--reason", "stuck", "--yes")
    assert "was taken away" in printed
    assert engine.show(NAME) is None
    run("collect")
    event = LockEvent.objects.get(kind=LockEvent.Kind.FORCED)
    assert event.reason == "stuck"
    assert event.actor


@taken_away
def test_release_without_a_fence_shows_the_holder_and_what_to_say(held: Lease, engine: Any) -> None:
    """The command it prints can be pasted."""
    code, printed = refused("release", NAME, "--reason", "it's stuck")
    assert code == 2
    assert "carol" in printed
    assert engine.show(NAME) is not None
    *_, again = printed.strip().splitlines()
    words = shlex.split(again)
    assert words[:3] == ["python", "manage.py", "lockapp"]
    assert "was taken away" in run(*words[3:], "--yes")


def test_release_of_an_old_fence_does_nothing(held: Lease, engine: Any) -> None:
    """Somebody else holds the lock by now."""
    code, printed = refused("release", NAME, "--fence", "7", "--reason", "stuck", "--yes")
    assert code == 1
    assert "no longer held with fence 7; nothing was done" in printed
    assert engine.show(NAME).holders[0].fence == held.fence


def test_release_of_a_free_lock_does_nothing(engine: Any) -> None:
    """And says so."""
    assert refused("release", "order:1", "--fence", "7", "--reason", "x", "--yes")[0] == 1


def test_release_needs_a_reason(held: Lease, engine: Any) -> None:
    """An empty one is none."""
    for more in ((), ("--reason", "  ")):
        assert refused("release", NAME, "--fence", str(held.fence), "--yes", *more)[0] == 2
    assert engine.show(NAME) is not None


def test_release_is_not_done_unasked(held: Lease, engine: Any, monkeypatch: Any) -> None:
    """In a script it wants --yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, printed = refused("release", NAME, "--fence", str(held.fence), "--reason", "stuck")
    assert code == 2
    assert "--yes" in printed
    assert engine.show(NAME) is not None


@taken_away
@pytest.mark.parametrize(
    ("answer", "done"), [("y", True), ("YES", True), ("", False), ("n", False)]
)
def test_release_asks_a_person(
    held: Lease, engine: Any, monkeypatch: Any, answer: str, done: bool
) -> None:
    """Enter alone is no."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    arguments = ("release", NAME, "--fence", str(held.fence), "--reason", "stuck")
    if done:
        assert "carol" in run(*arguments)
    else:
        assert refused(*arguments)[0] == 1
    assert (engine.show(NAME) is None) is done


def test_the_end_of_input_is_no(held: Lease, engine: Any, monkeypatch: Any) -> None:
    """Ctrl-D at the question."""

    def end(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", end)
    arguments = ("release", NAME, "--fence", str(held.fence), "--reason", "stuck")
    code, printed = refused(*arguments)
    assert (code, printed.splitlines()[-1]) == (1, "Nothing was done.")
    assert engine.show(NAME) is not None


def test_release_in_json_says_what_became_of_it(held: Lease, engine: Any) -> None:
    """Also when nothing did; it is never asked back there."""
    arguments = ("release", NAME, "--reason", "stuck", "--json", "--fence")
    assert refused(*arguments, str(held.fence))[0] == 2
    code, printed = refused(*arguments, "7", "--yes")
    assert code == 1
    answer, _ = json.JSONDecoder().raw_decode(printed)
    assert answer == {"name": NAME, "fence": 7, "outcome": "changed"}


# ------------------------------------------------------------------ asking


@pytest.mark.django_db
def test_revoke_asks_the_holder_and_is_audited(held: Lease, engine: Any) -> None:
    """It keeps the lock; `show` says who asked, when and why, and that its process knows."""
    printed = run("revoke", NAME, "--fence", str(held.fence), "--reason", "deploy\x1b[2J")
    assert "was asked to let go" in printed
    assert "It keeps the lock" in printed
    assert engine.show(NAME).holders[0].fence == held.fence
    held.renew()  # at the latest
    assert held.revoke_requested
    printed = run("show", NAME)
    assert re.search(r"knows +yes: renewed since then", printed)
    assert re.search(r"asked +to let go, by \S+, [\d.]+ m?s ago \(20\d\d-", printed)
    assert re.search(r"reason +deploy\\x1b\[2J", printed)
    (holder,) = json.loads(run("show", NAME, "--json"))["holders"]
    request = holder["request"]
    assert (request["reason"], request["told"]) == (r"deploy\x1b[2J", True)
    assert re.match(r"\d{4}-\d\d-\d\dT", request["at"])
    run("collect")
    event = LockEvent.objects.get(kind=LockEvent.Kind.REVOKED)
    assert event.reason == "deploy\x1b[2J"
    assert event.actor == request["actor"]
    assert event.task == "shop.report"


@taken_away
def test_a_holder_that_is_silent_since_it_was_asked_is_shown_as_such(
    engine: Any, redis_url: str, prefix: str
) -> None:
    """Frozen or dead: it can't have heard of the request."""
    with silent_holder(redis_url, prefix) as fence:
        run("revoke", "order:1", "--fence", str(fence), "--reason", "deploy")
        assert re.search(r"knows +not heard of since then", run("show", "order:1"))
        (holder,) = json.loads(run("show", "order:1", "--json"))["holders"]
        assert holder["request"]["told"] is False


@contextlib.contextmanager
def silent_holder(url: str, prefix: str) -> Iterator[int]:
    """Have a process take order:1 and stop it; yield the fence, and have it released."""
    arguments = [url, prefix, "order:1", "hold", "30"]
    command = [sys.executable, "-m", "tests.contract.actor", *arguments]
    child = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        said = child.stdout.readline()
        freeze(child)
        yield int(re.findall(r"\d{10,}", said)[0])
    finally:
        child.kill()
        child.communicate()
        locks["default"].force_release(
            "order:1", locks["default"].show("order:1").holders[0].fence, actor="test"
        )


def test_revoke_in_json_says_what_became_of_it(held: Lease) -> None:
    """A script reads the outcome, and the exit code."""
    arguments = ("revoke", NAME, "--reason", "deploy", "--json", "--fence")
    answer = json.loads(run(*arguments, str(held.fence)))
    assert answer == {"name": NAME, "fence": held.fence, "outcome": "asked"}
    code, printed = refused(*arguments, "7")
    assert code == 1
    answer, _ = json.JSONDecoder().raw_decode(printed)
    assert answer["outcome"] == "changed"


def test_revoke_without_a_fence_shows_what_to_say(held: Lease) -> None:
    """The command it prints can be pasted."""
    code, printed = refused("revoke", NAME, "--reason", "it's time")
    assert code == 2
    assert "carol" in printed
    words = shlex.split(printed.strip().splitlines()[-1])
    assert words[:4] == ["python", "manage.py", "lockapp", "revoke"]
    assert "was asked to let go" in run(*words[3:])


def test_revoke_asks_nobody_when_it_can_not_be_meant(held: Lease) -> None:
    """An old fence, a free lock, no reason."""
    fence = str(held.fence)
    assert refused("revoke", NAME, "--fence", "7", "--reason", "x")[0] == 1
    assert refused("revoke", "order:1", "--fence", "7", "--reason", "x")[0] == 1
    assert refused("revoke", NAME, "--fence", fence, "--reason", " ")[0] == 2
    held.renew()
    assert not held.revoke_requested


# ------------------------------------------------------------------ wrong ways and failures


@pytest.mark.parametrize(
    "arguments",
    [
        (), ("unlock",), ("show",), ("list", "--limit", "0"), ("list", "--limit", "x"),
        ("release", "x", "--fence", "-1"), ("revoke", "x", "--fence", "x"),
        ("collect", "--interval", "0"),
        ("list", "--using", "no"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused(engine: Any, arguments: tuple[str, ...]) -> None:
    """With a word on what is wrong."""
    out = io.StringIO()
    with pytest.raises(CommandError) as error:
        call_command("lockapp", *arguments, stdout=out, stderr=out)
    assert str(error.value)


@pytest.mark.django_db
def test_an_engine_that_does_not_answer_exits_with_3(
    settings: Any, fresh_redis: RedisServer, prefix: str
) -> None:
    """Never taken for "nobody holds it"."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.redis.RedisEngine",
            "LOCATION": fresh_redis.url,
            "OPTIONS": {"prefix": prefix},
        }
    }
    fresh_redis.kill()
    for arguments in (
        ("list",), ("show", "x"), ("sweep",), ("collect",),
        ("release", "x", "--fence", "7", "--reason", "stuck", "--yes"),
        ("revoke", "x", "--fence", "7", "--reason", "stuck"),
    ):  # fmt: skip
        assert refused(*arguments)[0] == 3


@pytest.mark.django_db
def test_a_database_that_fails_exits_with_4(held: Lease, engine: Any, monkeypatch: Any) -> None:
    """The lock goes on."""

    def fail(*_: Any, **__: Any) -> None:
        raise DatabaseError("disk full")

    monkeypatch.setattr("lockapp.querysets.LockEventQuerySet.bulk_create", fail)
    assert refused("collect")[0] == 4
    assert engine.show(NAME) is not None


# ------------------------------------------------------------------ collecting


@pytest.mark.django_db
def test_collect_stores_and_says_how_many(held: Lease) -> None:
    """And a second time nothing."""
    assert run("collect") == "default: 1 events stored\n"
    assert run("collect") == "default: 0 events stored\n"


def test_sweep_reclaims_expired_leases(engine: Any) -> None:
    """And says how many."""
    lease = Lock(engine, "order:1", ttl=0.05, wait=0, renew=False).acquire()
    wait_until(lambda: lease.lost)
    printed = ""

    def swept() -> bool:
        nonlocal printed
        printed = run("sweep")
        return engine.snapshot().total == 0

    wait_until(swept)
    assert re.fullmatch(r"default: [01] expired leases reclaimed\n", printed)


@pytest.mark.django_db
def test_engines_within_one_process_have_nothing_to_collect(settings: Any, prefix: str) -> None:
    """They are left out, unless they are named."""
    settings.LOCKAPP = {
        "default": {
            "ENGINE": "lockapp.engines.memory.MemoryEngine",
            "OPTIONS": {"prefix": prefix},
        }
    }
    assert "No engine" in run("collect")
    assert run("collect", "--using", "default") == "default: 0 events stored\n"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_collect_follow_goes_on_until_it_is_told_to_end(
    engine: Any, redis_url: str, prefix: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Then it says what it did and exits with 0."""
    settings = tmp_path / "follow_settings.py"
    settings.write_text(
        "from tests.settings import *\n"
        "LOCKAPP = {'default': {'ENGINE': 'lockapp.engines.redis.RedisEngine',\n"
        f"    'LOCATION': {redis_url!r}, 'OPTIONS': {{'prefix': {prefix!r}}}}}}}\n"
    )
    environment = child_environment(
        DJANGO_SETTINGS_MODULE="follow_settings",
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]),
    )
    command = [sys.executable, "manage.py", "lockapp", "collect", "--follow", "--interval", "0.05"]
    child = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("Collecting")
        for count in (1, 2):
            Lock(engine, "order:1", wait=0).acquire().release()
            wait_until(lambda: LockEvent.objects.count() == 2 * count, limit_s=20)  # noqa: B023
        child.send_signal(number)
        out, errors = child.communicate(timeout=scaled(20))
    finally:
        child.kill()
        child.communicate()
    assert (child.returncode, errors) == (0, "")
    assert out == "default: 4 events stored\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_may_strike_anywhere_in_a_wait(number: int) -> None:
    """It comes at every line of it, and nothing waits for itself."""

    def strike(*_: Any) -> Any:
        signal.raise_signal(number)
        return strike

    with until_told() as word:
        former = sys.gettrace()
        sys.settrace(strike)
        try:
            word.wait(30)
        finally:
            sys.settrace(former)
        assert word.come
    assert signal.getsignal(number) is not word.tell


# ------------------------------------------------------------------ the page


def test_the_reference_page_has_every_word_and_option() -> None:
    """Each word a heading, and below it a line with all that it takes."""
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    sections = dict(re.findall(r"^### lockapp (\w+)\n\n(.*?)(?=^##|\Z)", page, re.M | re.S))
    assert set(sections) == set(SUBCOMMANDS)
    parser = Command().create_parser("manage.py", "lockapp")
    (words,) = [it.choices for it in parser._actions if it.dest == "command"]
    usual = {"help", *(it.dest for it in BaseCommand().create_parser("", "")._actions)}
    for word, own in words.items():
        line = sections[word].partition("`:")[0].replace("--family NAME", "--family")
        options = [it for it in own._actions if it.dest not in usual]
        taken = {(it.option_strings or [it.dest.upper()])[0] for it in options}
        assert set(re.findall(r"--[a-z-]+|\bNAME\b", line)) == taken, word


def test_the_reference_page_has_every_finding_with_its_level() -> None:
    """In the order in which they are told; and every fault of a history."""
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    cells = re.findall(r"^\| `([a-z ]+)` \| (ERROR|WARNING|INFO) \|", page, re.M)
    named = {level: name for name, level in LEVELS.items()}
    kinds = sorted(CURES, key=lambda kind: -CURES[kind][0])
    assert cells == [(kind, named[CURES[kind][0]]) for kind in kinds]
    faults = {history.OVERLAP, history.TOKEN, history.OPEN, history.END, event.GAP}
    assert set(re.findall(r"^\| `([a-z]+)` \| (?!ERROR|WARNING|INFO)", page, re.M)) == faults
