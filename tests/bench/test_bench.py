"""The bench itself: arithmetic, records, and that it produces the page. Nothing is timed."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import redis

from lockapp.core.options import EngineOptions
from lockapp.lock import Lock
from tests.bench import arrival, page
from tests.bench.charts import draw
from tests.bench.contend import Grant, Round, Wait, jain, judge, median_quotient, percentile
from tests.bench.contestants import CONTESTANTS, Place, commands_sent
from tests.bench.growth import Loader, RecordingEngine, name_of
from tests.bench.handover import judged as judged_handover
from tests.bench.holding import HoldingResult
from tests.bench.holding import judged as judged_holding
from tests.bench.report import Chart, Section, Target, exact, markdown, rounded
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]

# ------------------------------------------------------------------ targets


@pytest.mark.parametrize(
    ("figure", "limit", "at_least", "reached"),
    [
        (0.74, 0.75, False, True),
        (0.75, 0.75, False, True),
        (0.751, 0.75, False, False),
        (2.0, 2.0, True, True),
        (1.999, 2.0, True, False),
        (0, 0, False, True),
        (1, 0, False, False),
        (math.nan, 1.0, False, False),
        (math.nan, 1.0, True, False),
        (math.inf, 1.0, False, False),
    ],
)
def test_a_target_is_reached_at_its_limit_and_never_without_a_figure(
    figure: float, limit: float, at_least: bool, reached: bool
) -> None:
    """Both ways round."""
    target = Target("x", figure, limit, at_least=at_least)
    assert target.reached is reached
    assert target.verdict == ("reached" if reached else "missed")


def test_a_missed_target_never_looks_like_its_limit() -> None:
    """0.7501 is not shown as 0.750."""
    missed = Target("x", 0.7501, 0.75, " ×")
    assert (missed.shown, missed.aim, missed.verdict) == ("0.7501 ×", "≤ 0.75 ×", "missed")
    assert Target("x", 0.74, 0.75).shown == "0.740"
    assert Target("x", 0.9999, 0.999, at_least=True).shown == "1.000"
    assert Target("x", 1000, 1000, at_least=True).shown == "1,000"


@pytest.mark.parametrize(
    ("figure", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.0, "1.00"), (12.34, "12.3"), (123456.7, "123,457")],
)
def test_figures_have_three_digits(figure: float, text: str) -> None:
    """And all digits before the point."""
    assert rounded(figure) == text
    assert rounded(math.nan) == "–"
    assert exact(0.75) == "0.75"


def a_round(**given: float) -> Round:
    """A round in which everything is 1."""
    return Round(**(dict.fromkeys(Round.__dataclass_fields__, 1.0) | given))  # type: ignore[arg-type]


def test_targets_of_a_hand_over_compare_neighbouring_rounds() -> None:
    """A peer that is slow in one round is compared with that round of ours."""
    found = {
        "lockapp": [
            a_round(per_second=rate, longest_wait_ms=6, median_wait_ms=2) for rate in (4, 40, 6)
        ],
        "python-redis-lock": [a_round(per_second=rate) for rate in (2, 20, 2)],
        "handoff": [a_round(longest_wait_ms=4, median_wait_ms=2)] * 3,
    }
    rate, index, longest = judged_handover(found)
    assert (rate.figure, rate.reached) == (2.0, True)
    assert index.reached
    assert (longest.figure, longest.reached) == (1.5, True)
    assert math.isnan(median_quotient([a_round()], [a_round(per_second=0)], "per_second"))


def test_targets_of_holding_are_per_cent_of_a_core() -> None:
    """0.021 of a core is 2.1 %."""
    threads, cpu, calls, lost = judged_holding(HoldingResult(10_000, 9.0, 1, 0.021, 60.0, 0))
    assert (cpu.shown, cpu.aim, cpu.verdict) == ("2.10 % of a core", "≤ 2 % of a core", "missed")
    assert threads.reached
    assert calls.reached
    assert lost.reached


# ------------------------------------------------------------------ records


def test_fairness_is_jains_index() -> None:
    """1 for equal shares, 1/n for one who gets all, 0 for nothing at all."""
    assert jain([5, 5, 5, 5]) == 1.0
    assert jain([9, 0, 0]) == pytest.approx(1 / 3)
    assert jain([0, 0]) == 0.0


def test_a_percentile_is_a_value_that_occurred() -> None:
    """The smallest that so many do not exceed."""
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 99) == 4.0
    assert percentile([1.0], 1) == 1.0
    assert math.isnan(percentile([], 50))


def test_a_record_of_grants_is_judged_without_its_warm_up() -> None:
    """Three contenders from 0 to 10 s; one of them starves; the first second does not count."""
    grants = [Grant(2, 0.5, 0.6)]
    grants += [Grant(number % 2, 1 + number, 1.5 + number) for number in range(8)]
    waits = [
        [Wait(0.1, 0.8), Wait(1.5, 1.5), Wait(3.5, 1.5)],
        [Wait(0.2, 1.8), Wait(9.9, 3.0)],
        [Wait(0.1, 0.4)],
    ]
    found = judge(grants, waits, 0.0, 10.0, commands=27)
    assert found.per_second == pytest.approx(8 / 9)
    assert found.to_another == 1.0
    assert found.starved == 1
    assert found.jain == pytest.approx(64 / (3 * 32))
    assert found.gap_p50_us == pytest.approx(0.5e6)
    assert found.median_wait_ms == pytest.approx(1650)
    assert found.longest_wait_ms == pytest.approx(3000), "a wait beyond the end counts"
    assert found.longest_to_median == pytest.approx(3000 / 1650)
    assert found.commands == 3.0


def test_a_grant_out_of_turn_is_seen() -> None:
    """Tokens a and b arrive in this order and are granted in the other."""
    a, b, digest = "a" * 32, "b" * 32, "0" * 40
    arrive = [f"EVALSHA {digest} 9 keys {token} 30000" for token in (a, b, a)]
    granted = {token: f'HSET lock h:{token} "1 2 3" d:{token} {{}}' for token in (a, b)}
    assert arrival.judge([*arrive, granted[a], granted[b]], digest) == arrival.ArrivalResult(2, 0)
    assert arrival.judge([*arrive, granted[b], granted[a]], digest) == arrival.ArrivalResult(2, 1)
    assert arrival.judge([*arrive, granted[a]], "f" * 40) == arrival.ArrivalResult(0, 0)


# ------------------------------------------------------------------ what is measured


@pytest.mark.parametrize(
    ("key", "a_pair"), [("lockapp", 2), ("redis-py", 2), ("python-redis-lock", 3)]
)
def test_commands_are_counted_as_the_server_got_them_from_clients(
    key: str, a_pair: int, fresh_redis: RedisServer, tmp_path: Path
) -> None:
    """The server's statistics, of the commands that a contestant sends, against its own record."""
    take, give = CONTESTANTS[key].join(Place(fresh_redis.url, str(tmp_path)))("counted")
    take()
    give()
    client = fresh_redis.client
    client.ping()
    with redis.Redis.from_url(fresh_redis.url).monitor() as monitor:
        client.config_resetstat()
        for _ in range(3):
            take()
            give()
        counted = commands_sent(key, client)
        client.echo("end")
        recorded = []
        for entry in monitor.listen():
            if entry["command"] == "ECHO end":
                break
            if entry["client_type"] != "lua":
                recorded.append(entry["command"].split()[0])
    sent = [it for it in recorded if it not in ("CONFIG", "INFO")]
    assert counted == len(sent)
    # Of lockapp the watchdog may only now have come to subscribe, and to look once.
    assert len(sent) - 3 * a_pair in (range(4) if key == "lockapp" else (0,))


def test_locks_taken_in_bulk_are_what_an_acquire_leaves_behind(
    fresh_redis: RedisServer, prefix: str
) -> None:
    """Every key and field of them, beside a lock that was taken one by one."""
    loader = Loader(fresh_redis.url, prefix)
    loader.load(3)
    loader.check()
    client = fresh_redis.client
    lease = Lock(loader.engine, name_of("real"), ttl=3600).acquire(0)
    real, bulk = ({key: spelled(client, key) for key in named(client, it)} for it in ("real", 1))
    assert list(real.values()) == list(bulk.values()) != []
    first, second = (set(client.hgetall(named(client, it)[0])) for it in (0, 1))
    assert not first & second, "each has a token of its own"
    held = client.zrange(f"{prefix}:{{0}}:held", 0, -1)
    assert sorted(held) == sorted(name_of(it) for it in (0, 1, 2, "real"))
    lease.release()
    loader.engine.close()


def named(client: redis.Redis, which: object) -> list[str]:
    """The keys that bear a lock's name."""
    return sorted(client.scan_iter(f"*{name_of(which)}"))


def spelled(client: redis.Redis, key: str) -> list[str]:
    """A hash without what differs between two leases: tokens and numbers."""
    assert client.pttl(key) > 0
    return sorted(
        re.sub(r"[0-9a-f]{32}|\d+", "#", f"{field} {value}")
        for field, value in client.hgetall(key).items()
    )


def test_a_lock_in_bulk_that_is_not_granted_is_an_error(
    fresh_redis: RedisServer, prefix: str
) -> None:
    """Nothing is measured beside locks that are not there."""
    engine = RecordingEngine("before", fresh_redis.url, EngineOptions(prefix=prefix))
    with Lock(engine, name_of(1), ttl=3600, wait=0):
        loader = Loader(fresh_redis.url, prefix)
        with pytest.raises(RuntimeError, match="not granted"):
            loader.load(3)
        loader.loaded = 5
        with pytest.raises(RuntimeError, match="of 5 locks"):
            loader.check()
    loader.engine.close()
    engine.close()


# ------------------------------------------------------------------ the page

SECTION = Section(
    "A pair",
    ("", "µs"),
    (("lockapp", "12"), ("other", "24")),
    (Target("ratio", 0.5, 0.75, " ×"), Target("CPU", 3.0, 2.0)),
    (Chart("pair", "Pair, µs", ("lockapp", "other"), {"one core": (12.0, None)}),),
    ("A note.",),
)


def test_a_section_shows_its_targets_and_charts() -> None:
    """What was missed stands out."""
    text = markdown(SECTION, "performance")
    assert "| lockapp | 12 |" in text
    assert "| ratio | 0.500 × | ≤ 0.75 × | reached |" in text
    assert "| CPU | 3.00 | ≤ 2 | **missed** |" in text
    assert "![Pair, µs](performance/pair.svg)" in text


@pytest.mark.parametrize("lines", [False, True])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_chart_is_the_same_bytes_for_the_same_figures(lines: bool, logarithmic: bool) -> None:
    """And has nothing that changes from day to day or moves: no dates, versions, scripts."""
    chart = Chart(
        "waits",
        "Waits <ms>",
        ("2", "8"),
        {"a": (1.5, 2500.0), "b": (None, 3.0)},
        lines,
        logarithmic,
    )
    text = draw(chart)
    assert text == draw(chart)
    root = ElementTree.fromstring(text)
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert {"svg", "style", "text"} <= names
    assert "script" not in names
    assert "<!--" not in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"Generated|/(?:home|root|work|tmp)/|pygal \d", text)
    assert "2,500" in text


def test_a_run_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    """What people wrote stays; charts that are gone go."""
    copy = tmp_path / "performance.md"
    copy.write_text(f"# Title\n\nBefore.\n\n{page.BEGIN}old\n{page.END}\nAfter.\n", "utf-8")
    (tmp_path / page.FOLDER).mkdir()
    (tmp_path / page.FOLDER / "old.svg").write_text("", "utf-8")
    page.write([SECTION], "a machine", "Full run.", copy)
    first = copy.read_text("utf-8")
    page.write([SECTION], "a machine", "Full run.", copy)
    assert copy.read_text("utf-8") == first
    assert first.startswith("# Title\n\nBefore.\n")
    assert first.endswith("\nAfter.\n")
    assert "old" not in first
    assert "Machine: a machine." in first
    assert "Full run. 1 of 2 targets reached." in first
    assert [it.name for it in (tmp_path / page.FOLDER).iterdir()] == ["pair.svg"]
    with pytest.raises(ValueError, match="marks"):
        page.compose("# Title\n", [], "", "")


def test_the_page_in_the_documentation_shows_the_charts_that_lie_beside_it() -> None:
    """All of them and no others, as this version would draw them: with its style."""
    text = page.PAGE.read_text("utf-8")
    files = {path.name for path in (page.PAGE.parent / page.FOLDER).glob("*.svg")}
    assert set(page.charts_of(text)) == files != set()
    assert text.count(page.BEGIN) == text.count(page.END) == 1


@pytest.mark.timeout(180)
def test_the_whole_bench_runs_in_its_smallest_form_and_writes_the_page(tmp_path: Path) -> None:
    """Every measurement, on real servers and processes; its figures mean nothing."""
    copy = tmp_path / "performance.md"
    shutil.copy(page.PAGE, copy)
    command = [sys.executable, "-m", "tests.bench", "--tiny", "--write", "--page", str(copy)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    text = copy.read_text("utf-8")
    assert "**Smallest form**" in text
    assert re.search(r"\d+ of \d+ targets reached", done.stdout)
    for title in (
        "Uncontended pair", "2 processes on one lock", "each holding 5 ms", "2 threads",
        "Arrival order", "waiters of each", "waiters on one name", "Holding leases",
        "Pair beside other live locks", "Takeover after SIGKILL", "empty tasks",
        "The collector", "On ZooKeeper",
    ):  # fmt: skip
        assert title in text
        assert title in done.stdout
    assert re.search(r"^\| lockapp \| [1-9][\d,]* \| 0 \|$", text, re.MULTILINE), "out of turn"
    charts = page.charts_of(text)
    assert len(charts) == len(set(charts)) >= 6
    for name in charts:
        ElementTree.parse(tmp_path / page.FOLDER / name)
    assert str(tmp_path) not in text
    assert not re.search(r"/(?:home|root|work|tmp)/", text)
