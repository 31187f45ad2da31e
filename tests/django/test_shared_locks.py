"""How semaphores and read/write locks are shown, and how one holder of several is released."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from lockapp.context import holder_details
from lockapp.exceptions import LeaseLost
from lockapp.lease import Lease
from lockapp.lock import Lock
from lockapp.primitives import MultiLock, RWLock, Semaphore
from lockapp.single_flight import single_flight
from tests.timing import wait_until

pytestmark = pytest.mark.django_db
LIVE, RELEASE = "admin:lockapp_livelock_changelist", "admin:lockapp_livelock_release"
taken_away = pytest.mark.keeps_keys  # the tombstone by which the holder learns who took its lock

Take = Callable[..., Lease]


@pytest.fixture
def engine(redis_locks: Any) -> Any:
    """The engine that is asked."""
    return redis_locks["default"]


@pytest.fixture
def start(engine: Any) -> Iterator[Callable[[Lock, str], Future[Lease]]]:
    """Begin to acquire a lock as somebody: a thread of its own. All are released at the end."""
    begun: list[Future[Lease]] = []
    with contextlib.ExitStack() as pools:

        def work(lock: Lock, user: str) -> Lease:
            with holder_details(user=user):
                return lock.acquire()

        def begin(lock: Lock, user: str) -> Future[Lease]:
            pool = pools.enter_context(ThreadPoolExecutor(1))
            begun.append(pool.submit(work, lock, user))
            return begun[-1]

        yield begin
        for future in begun:
            with contextlib.suppress(LeaseLost):
                future.result().release()


@pytest.fixture
def take(start: Callable[[Lock, str], Future[Lease]]) -> Take:
    """Acquire a lock as somebody."""
    return lambda lock, user: start(lock, user).result()


@pytest.fixture
def boss() -> Client:
    """A superuser."""
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    return client


@pytest.fixture
def gpu(engine: Any, take: Take) -> list[Lease]:
    """Two of three permits."""
    semaphore = Semaphore(engine, "gpu", 3)
    return [take(semaphore, user) for user in ("ann", "bob")]


@pytest.fixture
def kb(engine: Any, take: Take, start: Callable[[Lock, str], Future[Lease]]) -> list[Lease]:
    """Two who read, and one who waits to write."""
    both = RWLock(engine, "kb:7")
    readers = [take(lock, user) for lock, user in ((both.read(), "ann"), (both.read(), "bob"))]
    start(both.write(), "cid")
    wait_until(lambda: engine.show("kb:7").waiter_count == 1)
    return readers


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("lockapp", *arguments, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


def words(answer: Any) -> str:
    """What a page says, without its markup."""
    return " ".join(re.sub(r"<[^>]*>", " ", answer.content.decode()).split())


# ------------------------------------------------------------------ in a terminal


def test_list_has_a_row_for_each_permit_and_says_how_many_are_taken(gpu: list[Lease]) -> None:
    """With the fence of each, to be named."""
    rows = run("list").splitlines()[1:]
    assert len(rows) == 2
    for row, lease, user in zip(rows, gpu, ("ann", "bob"), strict=True):
        assert str(lease.fence) in row
        assert user in row
        assert row.endswith("gpu  (2 of 3)")


def test_show_tells_the_holders_of_a_semaphore_apart(gpu: list[Lease]) -> None:
    """One after the other, each with all that is known."""
    printed = run("show", "gpu")
    assert re.search(r"semaphore +2 of 3 taken", printed)
    first, second = printed.split("2 of 2 holders")
    assert "ann" in first
    assert str(gpu[0].fence) in first
    assert "bob" in second
    assert str(gpu[1].fence) in second


def test_list_and_show_say_who_reads_and_who_writes(kb: list[Lease]) -> None:
    """Those who hold it, and those who wait."""
    assert len(re.findall(r"reads: (?:ann|bob)", run("list"))) == 2
    printed = run("show", "kb:7")
    assert re.search(r"read/write +2 readers\n", printed)
    assert len(re.findall(r"access +reads", printed)) == 2
    assert re.search(r"1 waiting:\n.*\n1 +writes: cid", printed)


def test_a_writer_is_shown_as_one(engine: Any, take: Take) -> None:
    """And as a reader once it has downgraded."""
    lease = take(RWLock(engine, "kb:7").write(), "ann")
    assert "writes: ann" in run("list")
    assert re.search(r"read/write +1 writer\n", run("show", "kb:7"))
    lease.downgrade()
    assert "reads: ann" in run("list")


def test_json_has_kind_limit_and_role(gpu: list[Lease], kb: list[Lease], engine: Any) -> None:
    """A number that means "no limit" is null; a mutex has no roles."""
    with Lock(engine, "order:1"):
        shown = {lock["name"]: lock for lock in json.loads(run("list", "--json"))["locks"]}
    facts = {
        name: (lock["kind"], lock["limit"], lock["used"], {it["role"] for it in lock["holders"]})
        for name, lock in shown.items()
    }
    assert facts == {
        "gpu": ("semaphore", 3, 2, {""}),
        "kb:7": ("rwlock", None, 2, {"reads"}),
        "order:1": ("lock", 1, 1, {""}),
    }
    (waiter,) = json.loads(run("show", "kb:7", "--json"))["waiters"]
    assert (waiter["role"], waiter["person"]["user"]) == ("writes", "cid")


@taken_away
def test_one_permit_is_released_by_its_fence(gpu: list[Lease], engine: Any) -> None:
    """Without a fence the command names them all; each line can be pasted."""
    out = io.StringIO()
    with pytest.raises(CommandError) as error:
        call_command("lockapp", "release", "gpu", "--reason", "stuck", stdout=out)
    offered = [shlex.split(line) for line in str(error.value).splitlines()[1:]]
    assert [each[each.index("--fence") + 1] for each in offered] == [str(it.fence) for it in gpu]
    assert "was taken away" in run(*offered[1][3:], "--yes")
    assert [holder.fence for holder in engine.show("gpu").holders] == [gpu[0].fence]
    with pytest.raises(LeaseLost):
        gpu[1].renew()
    gpu[0].renew()


def test_who_is_asked_is_shown_the_one_holder_that_would_lose_it(
    gpu: list[Lease], engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the others."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    out = io.StringIO()
    with pytest.raises(CommandError):
        call_command(
            "lockapp", "release", "gpu", "--fence", str(gpu[1].fence), "--reason", "x", stdout=out
        )
    assert "bob" in out.getvalue()
    assert "ann" not in out.getvalue()


# ------------------------------------------------------------------ in the admin


def test_the_page_lists_each_permit(boss: Client, gpu: list[Lease]) -> None:
    """Under one name, each with its own link to release it."""
    answer = boss.get(reverse(LIVE))
    page, text = answer.content.decode(), words(answer)
    assert 'rowspan="2"' in page
    assert "2 of 3" in text
    assert page.count(">gpu</a>") == 1
    for lease, user in zip(gpu, ("ann", "bob"), strict=True):
        assert f"name=gpu&amp;fence={lease.fence}" in page
        assert f"user {user}" in text


def test_the_page_says_who_reads_and_who_waits_to_write(boss: Client, kb: list[Lease]) -> None:
    """No number stands for "everybody"."""
    text = words(boss.get(reverse(LIVE), {"name": "kb:7"}))
    assert text.count("reads user") == 2
    assert "writes user cid" in text.partition("Queue")[2]
    assert "1000000" not in text.replace(",", "")


def test_it_says_so_in_chinese(boss: Client, kb: list[Lease]) -> None:
    """To who prefers it."""
    text = words(boss.get(reverse(LIVE), {"name": "kb:7"}, headers={"accept-language": "zh-hans"}))
    assert "读 用户" in text
    assert "写 用户" in text


def test_a_lock_with_many_holders_does_not_fill_the_list(
    boss: Client, engine: Any, take: Take
) -> None:
    """The first few, and a link to the page that has all of them."""
    semaphore = Semaphore(engine, "gpu", 9)
    leases = [take(semaphore, f"user{number}") for number in range(7)]
    answer = boss.get(reverse(LIVE))
    page = answer.content.decode()
    assert 'rowspan="5"' in page
    assert page.count(f'href="{reverse(RELEASE)}') == 5
    assert "all 7 holders" in words(answer)
    page = boss.get(reverse(LIVE), {"name": "gpu"}).content.decode()
    assert 'rowspan="7"' in page
    assert all(str(lease.fence) in page for lease in leases)


@taken_away
def test_a_permit_is_taken_away_and_the_others_stay(
    boss: Client, gpu: list[Lease], engine: Any
) -> None:
    """The confirmation shows whose it is, and says that the others keep theirs."""
    form = {"using": "default", "name": "gpu", "fence": gpu[0].fence, "reason": "stuck"}
    asked = words(boss.get(reverse(RELEASE), form))
    assert "user ann" in asked
    assert "user bob" not in asked
    assert "One other holder keeps its lease." in asked
    boss.post(reverse(RELEASE), form)
    assert [holder.fence for holder in engine.show("gpu").holders] == [gpu[1].fence]
    assert "no longer held with fence" in words(boss.post(reverse(RELEASE), form, follow=True))
    assert [holder.fence for holder in engine.show("gpu").holders] == [gpu[1].fence]


# ------------------------------------------------------------------ asking one of several


def test_one_permit_is_asked_by_its_fence(gpu: list[Lease]) -> None:
    """The command offers each; `show` says it of that one only, and the others hear nothing."""
    with pytest.raises(CommandError) as error:
        run("revoke", "gpu", "--reason", "deploy")
    offered = [shlex.split(line) for line in str(error.value).splitlines()[1:]]
    assert [each[each.index("--fence") + 1] for each in offered] == [str(it.fence) for it in gpu]
    assert "was asked to let go" in run(*offered[1][3:])
    for lease in gpu:
        lease.renew()
    assert [lease.revoke_requested for lease in gpu] == [False, True]
    first, second = run("show", "gpu").split("2 of 2 holders")
    assert "to let go" not in first
    assert re.search(r"asked +to let go", second)


def test_one_reader_is_asked_and_lets_the_writer_in(
    engine: Any, take: Take, start: Callable[[Lock, str], Future[Lease]]
) -> None:
    """The other reader keeps reading until it ends by itself."""
    both = RWLock(engine, "kb:7")
    ann, bob = take(both.read(), "ann"), take(both.read(), "bob")
    writer = start(both.write(), "cid")
    wait_until(lambda: engine.show("kb:7").waiter_count == 1)
    run("revoke", "kb:7", "--fence", str(ann.fence), "--reason", "a rebuild waits")
    for lease in (ann, bob):
        lease.renew()
    assert [ann.revoke_requested, bob.revoke_requested] == [True, False]
    ann.release()
    assert not writer.done()
    bob.release()
    writer.result().check()


def test_a_weight_above_one_is_shown(boss: Client, engine: Any, take: Take) -> None:
    """How much of the limit one holder takes."""
    take(Lock(engine, "gpu", limit=4, weight=3), "ann")
    assert re.search(r"weight +3\n", run("show", "gpu"))
    assert "3 of 4" in run("list")
    text = words(boss.get(reverse(LIVE)))
    assert "semaphore, 3 of 4" in text
    assert "takes 3 of 4" in text
    (lock,) = json.loads(run("list", "--json"))["locks"]
    assert lock["holders"][0]["weight"] == 3


# ------------------------------------------------------------------ locks taken by other means


@taken_away
def test_each_lock_of_a_multilock_stands_for_itself(boss: Client, engine: Any) -> None:
    """One of them is taken away; who holds them all finds out which."""
    pair = [Lock(engine, f"account:{number}", ttl=60) for number in (1, 2)]
    joint = MultiLock(pair).acquire()
    text = words(boss.get(reverse(LIVE)))
    assert text.count("account:1") == text.count("account:2") == 1
    fence = joint.fences["account:2"]
    run("release", "account:2", "--fence", str(fence), "--reason", "stuck", "--yes")
    with pytest.raises(LeaseLost) as loss:
        joint.release()
    assert loss.value.name == "account:2"
    assert engine.snapshot().locks == ()


def test_a_single_flight_says_what_it_is(boss: Client, engine: Any) -> None:
    """While it computes."""
    seen: list[str] = []

    def compute() -> int:
        seen.append(run("show", "rag:7"))
        seen.append(words(boss.get(reverse(LIVE))))
        return 7

    assert single_flight("rag", 7, compute=compute, ttl=0) == 7
    assert re.search(r"why +single flight", seen[0])
    assert "rag:7" in seen[1]
    assert "single flight" in seen[1]
