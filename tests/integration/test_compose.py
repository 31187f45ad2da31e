"""The shell in docker-compose.yml does what it says, and the addresses of the guide lead there.

Run without containers, with the server that the suite has, on other ports.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from lockapp import conf
from lockapp.lock import Lock
from tests.endings import end
from tests.server_process import Watcher
from tests.servers import server_binary
from tests.timing import scaled, wait_until

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "howto" / "choose-an-engine.md"
SERVICES = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
PATIENT = {"connect_timeout": scaled(30), "command_timeout": scaled(10)}
pytestmark = pytest.mark.timeout(300)


def free_ports(count: int) -> list[int]:
    """Return ports that are free a moment ago, and 10,000 above too: a Cluster's nodes use both."""
    found: list[int] = []
    # Below those that the system gives to outgoing connections (from 32,768 on), both of them.
    start = 10_000 + os.getpid() % 10_000
    for port in range(start, start + 2_500):
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


class Composed:
    """The servers of one service, started by its own words."""

    def __init__(self, name: str, directory: Path) -> None:
        service = SERVICES[name]
        theirs = [str(port).split(":")[-1] for port in service["ports"]]
        self._ports = dict(zip(theirs, map(str, free_ports(len(theirs))), strict=True))
        self._programs = {
            "valkey-server": server_binary(),
            "valkey-cli": shutil.which("redis-cli") or shutil.which("valkey-cli") or "",
        }
        self._directory = directory
        self._check = service["healthcheck"]["test"]
        # Daemons would leave the group of processes by which they are ended here.
        shell = self.here(service["command"][-1]).replace(" --daemonize yes", " &")
        self._log = (directory / "log").open("ab")
        self._process = subprocess.Popen(
            ["sh", "-ec", shell], cwd=directory, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        self._watcher = Watcher(self._process.pid, group=True)

    def here(self, text: str) -> str:
        """Put our programs, ports and directory where the file has its own."""
        text = text.replace("$$", "$").replace("/tmp/", f"{self._directory}/")
        text = re.sub(r"valkey-\w+", lambda found: self._programs[found[0]], text)
        return re.sub(r"\b\d{4,5}\b", lambda found: self._ports.get(found[0], found[0]), text)

    def healthy(self) -> bool:
        """Whether the health check passes."""
        kind, *words = self._check
        shell = words[0] if kind == "CMD-SHELL" else shlex.join(words)
        done = subprocess.run(
            ["sh", "-c", self.here(shell)], capture_output=True, text=True, check=False
        )
        # The client tells of an error by its words alone.
        return done.returncode == 0 and not re.search(r"(?m)^(ERR|NO)", done.stdout)

    def wait(self) -> None:
        """As `docker compose up --wait`."""
        try:
            wait_until(self.healthy, limit_s=120, every_s=0.2, what="the health check")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{(self._directory / 'log').read_text()}") from None

    def end(self) -> None:
        """Kill all of its processes."""
        self._watcher.dismiss()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


@pytest.fixture
def composed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Composed]:
    """A service of the file."""
    if not (shutil.which("redis-cli") or shutil.which("valkey-cli")):
        pytest.skip("no redis-cli or valkey-cli on PATH")
    made = Composed(request.param, tmp_path)
    yield made
    made.end()


def addresses(profile: str) -> list[str]:
    """What the guide says of a profile."""
    line = re.search(rf"^\| `{profile}` \|(.*)\|$", GUIDE.read_text("utf-8"), re.MULTILINE)
    assert line
    return re.findall(r"`([^`]+)`", line[1])


def use(given: dict[str, Any]) -> None:
    """Take and give back a lock there."""
    engine = conf.read_engine("here", {**given, "OPTIONS": PATIENT}).build()
    Lock(engine, "order:1", wait=scaled(30)).acquire().release()
    end(engine)


@pytest.mark.parametrize("composed", ["sentinel", "cluster"], indirect=True)
def test_servers_that_belong_together_give_locks(
    composed: Composed, request: pytest.FixtureRequest
) -> None:
    """At the address of the guide, once they say that they are healthy."""
    composed.wait()
    (url,) = addresses(request.node.callspec.params["composed"])
    use({"LOCATION": composed.here(url)})


@pytest.mark.parametrize("composed", ["redlock"], indirect=True)
def test_servers_that_share_nothing_give_locks_each(composed: Composed) -> None:
    """From the first address of the guide to the last."""
    composed.wait()
    first, last = addresses("redlock")
    ports = range(int(first[-6:-2]), int(last[-6:-2]) + 1)
    assert len(ports) == 5
    for port in ports:
        use({"LOCATION": composed.here(first.replace(first[-6:-2], str(port)))})


@pytest.mark.parametrize("profile", ["single", "zookeeper"])
def test_the_other_addresses_of_the_guide_are_published(profile: str) -> None:
    """By a service of the profile."""
    (url,) = addresses(profile)
    port = re.search(r":(\d+)", url)
    assert port
    published = [
        mapped
        for service in SERVICES.values()
        if profile in service["profiles"]
        for mapped in service["ports"]
    ]
    assert published == [f"127.0.0.1:{port[1]}:{port[1]}"]
