"""Servers and Sentinels that ask for passwords, and speak TLS only: as what is written in a URL.

The user may do on the servers what the reference says, and on the Sentinels SENTINEL alone. All
processes are real.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from lockapp import conf
from lockapp.core.options import EngineOptions
from lockapp.engines.base import Engine
from lockapp.engines.redis.engine import RedisEngine
from lockapp.exceptions import EngineUnavailable
from lockapp.lock import Lock
from tests.certificates import make_certificate
from tests.contract.fronts import People
from tests.endings import end
from tests.guarded_sentinels import ASKS, OWNER, USER, WORD, Guard, GuardedService
from tests.sentinels import SERVICE
from tests.timing import scaled, wait_until

# Handshakes take long on a busy machine, and the Sentinels share what one connection may take.
PATIENT = {"connect_timeout": scaled(30), "command_timeout": scaled(10), "tombstone": 0.2}
WRONG, MISSING = "invalid username-password pair", "Authentication required"
Make = Callable[..., Engine]


@pytest.fixture(scope="module", params=["passwords", "passwords and TLS"])
def guard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Guard:
    """What stands between a stranger and the locks."""
    if request.param == "passwords":
        return Guard()
    service = request.getfixturevalue("service")
    certificate = make_certificate(service("openssl"), tmp_path_factory.mktemp("tls"))
    return Guard(certificate, shutil.which(service("tls-server")))


@pytest.fixture(scope="module")
def guarded(guard: Guard) -> Iterator[GuardedService]:
    """A master, its replica and a Sentinel, for what harms nobody."""
    with GuardedService(guard, replicas=1, sentinels=1, down_after_s=60) as service:
        yield service


@pytest.fixture
def failing(guard: Guard) -> Iterator[GuardedService]:
    """A service of the test's own, with three Sentinels."""
    with GuardedService(guard) as service:
        yield service


@pytest.fixture
def make(prefix: str) -> Iterator[Make]:
    """Makes engines of an address."""
    made: list[Engine] = []

    def of(url: str, **options: Any) -> Engine:
        parsed = EngineOptions.parse({**PATIENT, "prefix": prefix, **options})
        made.append(RedisEngine(f"e{len(made)}", url, parsed))
        return made[-1]

    yield of
    for engine in made:
        end(engine)


@pytest.fixture(params=["sync", "async"])
def people(request: pytest.FixtureRequest) -> Iterator[People]:
    """Contenders of either front."""
    made = People(request.param)
    yield made
    made.close()


def hand_over(engine: Engine, people: People) -> None:
    """Have a lock taken, waited for, handed over, renewed and released."""
    ann, bob = people("ann", "bob")
    lease = ann.acquire(Lock(engine, "order:1"))
    waiting = bob.start_acquire(Lock(engine, "order:1", wait=scaled(20)))
    wait_until(lambda: (state := engine.show("order:1")) and state.waiter_count, what="bob")
    ann.release(lease)
    handed = waiting.result(scaled(20))
    assert handed.fence > lease.fence
    bob.renew(handed)
    bob.release(handed)
    assert engine.show("order:1") is None


def test_a_lock_is_taken_waited_for_and_handed_over(
    guarded: GuardedService, make: Make, people: People
) -> None:
    """By a user who may do no more than is documented; its replica has each lease."""
    hand_over(make(guarded.url, min_replicas_acked=1), people)


def test_a_cache_on_them_will_do(guarded: GuardedService, prefix: str, people: People) -> None:
    """django-redis knows the same passwords by other names."""
    tls = guarded.guard.certificate
    secure: dict[str, Any] = (
        {"ssl": True, "ssl_ca_certs": str(tls[0]), "ssl_cert_reqs": "required"} if tls else {}
    )
    cache = {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": f"{'rediss' if tls else 'redis'}://{SERVICE}/0",
        "OPTIONS": {
            "CLIENT_CLASS": "django_redis.client.SentinelClient",
            "CONNECTION_FACTORY": "django_redis.pool.SentinelConnectionFactory",
            "SENTINELS": guarded.hosts,
            "SENTINEL_KWARGS": {"username": USER, "password": ASKS, **secure},
            "CONNECTION_POOL_KWARGS": {"username": USER, **secure},
            "PASSWORD": WORD,
        },
    }
    local = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    with override_settings(CACHES={"default": local, "locks": cache}):
        given = {"CACHE": "locks", "OPTIONS": {**PATIENT, "prefix": prefix}}
        engine = conf.read_engine("default", given).build()
        hand_over(engine, people)
        end(engine)


@pytest.mark.timeout(300)
def test_after_a_failover_the_same_words_open_the_new_master(
    failing: GuardedService, make: Make, people: People
) -> None:
    """Whoever waits goes on, and tokens grow."""
    engine = make(failing.url)
    ann, bob = people("ann", "bob")
    lease = ann.acquire(Lock(engine, "order:1", ttl=scaled(60)))
    waiting = bob.start_acquire(Lock(engine, "order:1", wait=scaled(60)))
    wait_until(lambda: (state := engine.show("order:1")) and state.waiter_count, what="bob")
    old = failing.master
    old.kill()
    wait_until(lambda: failing.master is not old, limit_s=40, every_s=0.05, what="a failover")

    def released() -> bool:
        try:
            ann.release(lease)
        except EngineUnavailable:
            return False
        return True

    wait_until(released, limit_s=60, every_s=0.05, what="the release")
    handed = waiting.result(scaled(60))
    assert handed.fence > lease.fence
    bob.release(handed)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"word": "nonsense"}, WRONG),
        ({"word": ""}, MISSING),
        ({"asks": "nonsense"}, f"Sentinel .*{WRONG}"),
        ({"asks": "", "sentinel_username": ""}, f"Sentinel .*{MISSING}"),
    ],
)
def test_a_wrong_word_is_told_and_whose_it_is(
    guarded: GuardedService, make: Make, people: People, wrong: dict[str, str], told: str
) -> None:
    """The server's or the Sentinel's; the word itself is not repeated."""
    engine = make(guarded.address(**wrong))
    with pytest.raises(EngineUnavailable, match=told) as refusal:
        people("ann").acquire(Lock(engine, "order:1", wait=0))
    assert not any(word in str(refusal.value) for word in (WORD, ASKS, OWNER, "nonsense"))
    (problem,) = engine.examine().problems
    assert problem.kind == "unreachable"
    assert told.rpartition("*")[2] in problem.detail


def test_an_unknown_sentinel_is_not_trusted(
    guarded: GuardedService, make: Make, people: People
) -> None:
    """Nothing is told to one whose certificate nobody vouches for."""
    if guarded.guard.certificate is None:
        pytest.skip("without TLS nobody knows whom one talks to")
    engine = make(guarded.address(ssl_ca_certs=""))
    with pytest.raises(EngineUnavailable, match=r"(?i)certificate") as refusal:
        people("ann").acquire(Lock(engine, "order:1", wait=0))
    assert refusal.value.reason == "connect"


@pytest.mark.django_db
@pytest.mark.keeps_keys
def test_doctor_and_checks_come_in_too(
    guarded: GuardedService, settings: Any, prefix: str, capsys: Any
) -> None:
    """With the same words; nothing that stops a lock is found, and no word is shown."""
    options = {**PATIENT, "prefix": prefix, "min_replicas_acked": 1}
    settings.LOCKAPP = {"default": {"LOCATION": guarded.url, "OPTIONS": options}}
    call_command("lockapp", "doctor")
    call_command("check", "--deploy", "--tag", "lockapp")
    told = capsys.readouterr()
    printed = told.out + told.err
    assert f":{guarded.sentinels[0].port}/{SERVICE}/0, version" in printed
    assert "lockapp.W007" not in printed
    assert not any(word in printed for word in (WORD, ASKS, OWNER))
