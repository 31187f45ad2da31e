"""The servers and the faulty network of tests/servers.py and tests/proxy.py do what they say."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.proxy import CommandCounter, Fault, TcpProxy
from tests.servers import RedisServer
from tests.timing import scaled, stopwatch, wait_until


def connect(proxy: TcpProxy, limit_s: float = 0.3) -> redis.Redis:
    """A client that neither waits long nor tries again, so that each fault shows."""
    return redis.Redis(
        port=proxy.port,
        socket_timeout=scaled(limit_s),
        socket_connect_timeout=scaled(limit_s),
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
        single_connection_client=False,
    )


def test_restart_empties_the_server_and_keeps_its_port(fresh_redis: RedisServer) -> None:
    """An empty restart is the "server that lost its data" of the fault tests."""
    port = fresh_redis.port
    fresh_redis.client.set("a", "1")
    fresh_redis.restart()
    assert fresh_redis.port == port
    assert fresh_redis.client.get("a") is None


def test_restart_can_keep_the_data(fresh_redis: RedisServer) -> None:
    """A restart of a persistent server brings its keys back."""
    fresh_redis.client.set("a", "1")
    fresh_redis.restart(empty=False)
    assert fresh_redis.client.get("a") == "1"


def test_a_paused_server_answers_after_resume(fresh_redis: RedisServer) -> None:
    """SIGSTOP keeps connections open without answers; SIGCONT lets them go on."""
    with redis.Redis(port=fresh_redis.port, socket_timeout=scaled(0.2), retry=None) as client:
        fresh_redis.pause()
        with pytest.raises(redis.exceptions.TimeoutError):
            client.ping()
    fresh_redis.resume()
    assert fresh_redis.client.ping()


def test_settings_change_while_the_server_runs(fresh_redis: RedisServer) -> None:
    """`_` in a name stands for `-`."""
    fresh_redis.config(maxmemory_policy="noeviction", maxmemory="50mb")
    assert fresh_redis.client.config_get("maxmemory") == {"maxmemory": str(50 * 1024 * 1024)}


def test_unix_socket_reaches_the_same_server(fresh_redis: RedisServer) -> None:
    """The unix address is the same data."""
    fresh_redis.client.set("a", "1")
    with redis.Redis.from_url(fresh_redis.unix_url, decode_responses=True) as client:
        assert client.get("a") == "1"


def test_stop_leaves_no_process_and_no_directory() -> None:
    """What was started is gone; a second stop is quiet."""
    server = RedisServer().start()
    pid, directory = server.pid, server.directory
    server.stop()
    server.stop()
    assert not directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_dies_with_the_test_process_that_started_it() -> None:
    """Also when that process had no chance to clean up."""
    script = textwrap.dedent(
        """
        import sys, time
        from tests.servers import RedisServer
        server = RedisServer().start()
        print(server.pid, server.directory, flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid, directory = starter.stdout.readline().split()
        starter.send_signal(signal.SIGKILL)
    wait_until(lambda: not _alive(int(pid)), what="the server to die")
    wait_until(lambda: not Path(directory).exists(), what="its directory to go")


def _alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_proxy_forwards_and_counts(proxy: TcpProxy) -> None:
    """Without a fault it is a wire with a counter."""
    with connect(proxy) as client:
        client.ping()
        proxy.forget_counts()
        assert client.echo("hello") == "hello"
    assert proxy.commands == {"ECHO": 1}
    assert proxy.request_bytes > 0
    assert proxy.reply_bytes > 0


def test_dropped_replies_leave_the_command_done(
    proxy: TcpProxy, redis_server: RedisServer, prefix: str
) -> None:
    """The lost reply: the server has acted, the client cannot know."""
    with connect(proxy) as client:
        client.ping()
        proxy.inject(Fault.DROP_REPLIES)
        with pytest.raises(redis.exceptions.TimeoutError):
            client.set(f"{prefix}:a", "1", px=5000)
    assert redis_server.client.get(f"{prefix}:a") == "1"


def test_dropped_requests_never_arrive(
    proxy: TcpProxy, redis_server: RedisServer, prefix: str
) -> None:
    """The lost request looks the same to the client, but nothing happened."""
    with connect(proxy) as client:
        client.ping()
        proxy.inject(Fault.DROP_REQUESTS)
        with pytest.raises(redis.exceptions.TimeoutError):
            client.set(f"{prefix}:a", "1", px=5000)
    proxy.heal()
    assert redis_server.client.get(f"{prefix}:a") is None


def test_a_held_request_arrives_after_its_client_has_gone(
    proxy: TcpProxy, redis_server: RedisServer, prefix: str
) -> None:
    """The late request: it acts when nobody waits for it any more."""
    with connect(proxy) as client:
        client.ping()
        proxy.inject(Fault.HOLD_REQUESTS)
        with pytest.raises(redis.exceptions.TimeoutError):
            client.set(f"{prefix}:a", "1", px=5000)
    assert redis_server.client.get(f"{prefix}:a") is None
    proxy.heal()
    wait_until(lambda: redis_server.client.get(f"{prefix}:a") == "1", what="the late request")


def test_a_held_request_survives_a_cut(
    proxy: TcpProxy, redis_server: RedisServer, prefix: str
) -> None:
    """A cut breaks the client's side at once; what was under way still arrives."""
    with connect(proxy, 5) as client:
        client.ping()
        proxy.inject(Fault.HOLD_REQUESTS)
        cutter = threading.Timer(scaled(0.1), proxy.cut)
        cutter.start()
        with stopwatch() as watch, pytest.raises(redis.exceptions.ConnectionError):
            client.set(f"{prefix}:a", "1", px=5000)
        cutter.join()
    assert watch.seconds < scaled(2)
    proxy.heal()
    wait_until(lambda: redis_server.client.get(f"{prefix}:a") == "1", what="the late request")


def test_one_reply_is_replaced_by_a_reset(
    proxy: TcpProxy, redis_server: RedisServer, prefix: str
) -> None:
    """`once`: the next connection is served as usual."""
    with connect(proxy) as client:
        client.ping()
        proxy.inject(Fault.CUT_ON_REPLY, once=True)
        with pytest.raises(redis.exceptions.ConnectionError):
            client.set(f"{prefix}:a", "1", px=5000)
        assert client.get(f"{prefix}:a") == "1"


def test_black_hole_loses_nothing(proxy: TcpProxy) -> None:
    """A half-open connection: silence, then everything."""
    with connect(proxy, 5) as client:
        client.ping()
        proxy.inject(Fault.BLACK_HOLE)
        healer = threading.Timer(scaled(0.2), proxy.heal)
        healer.start()
        with stopwatch() as watch:
            assert client.echo("late") == "late"
        healer.join()
    assert watch.seconds >= scaled(0.19)


def test_delay_is_added_to_each_request(proxy: TcpProxy) -> None:
    """Latency on the way there."""
    with connect(proxy, 5) as client:
        client.ping()
        proxy.delay(scaled(0.1))
        with stopwatch() as watch:
            client.ping()
    assert watch.seconds >= scaled(0.1)


def test_cut_resets_connections_and_serves_new_ones(proxy: TcpProxy) -> None:
    """The client sees a reset, not an orderly end, and may connect again."""
    # A plain socket: redis-py looks at an idle connection before it uses it and hides the reset.
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=scaled(5)) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(100) == b"+PONG\r\n"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(100)
    with connect(proxy) as client:
        assert client.ping()


def test_refuse_is_a_dead_host_until_healed(proxy: TcpProxy) -> None:
    """New connections are refused at once; the port stays the same."""
    with connect(proxy) as client:
        client.ping()
        proxy.refuse()
        for _ in range(2):
            with pytest.raises(redis.exceptions.ConnectionError):
                client.ping()
        proxy.heal()
        assert client.ping()


def test_stop_ends_held_connections(redis_server: RedisServer) -> None:
    """Every thread ends, also with a request on hold (the leak check of the suite looks)."""
    with TcpProxy(redis_server.port) as proxy, connect(proxy) as client:
        client.ping()
        proxy.inject(Fault.HOLD_REQUESTS)
        with pytest.raises(redis.exceptions.TimeoutError):
            client.ping()


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_commands_are_counted_however_they_are_cut(size: int) -> None:
    """Chunks end anywhere; a value that looks like a command is not one."""
    value = b"*1\r\n$4\r\nPING\r\n"
    stream = b"*1\r\n$4\r\nping\r\n*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n" % (len(value), value)
    counter = CommandCounter()
    names = [
        name
        for start in range(0, len(stream), size)
        for name in counter.feed(stream[start : start + size])
    ]
    assert names == ["PING", "ECHO"]
