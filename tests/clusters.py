"""A Cluster of three masters, each with a replica, on free loopback ports."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.crc import key_slot

from tests.sentinels import REPLICATION
from tests.servers import RedisServer, free_port
from tests.timing import scaled, wait_until

SLOTS = 16384


class Node(RedisServer):
    """One node; alone until it is told to meet others."""

    def __init__(self, timeout_s: float) -> None:
        self.bus_port = 0
        self.known = False  # whether others know its bus port
        super().__init__(
            *REPLICATION,
            "--cluster-enabled", "yes",
            "--cluster-config-file", "nodes.conf",
            "--cluster-node-timeout", str(round(scaled(timeout_s) * 1000)),
            "--cluster-replica-validity-factor", "0",
            "--cluster-allow-replica-migration", "no",
            "--cluster-require-full-coverage", "no",
        )  # fmt: skip

    def _command(self) -> list[str]:
        if not self.known:  # chosen as late as possible, and anew when it was taken
            self.bus_port = free_port()
        return [*super()._command(), "--cluster-port", str(self.bus_port)]

    @property
    def id(self) -> str:
        """By which the nodes of a Cluster know each other."""
        return str(self.ask("MYID"))

    def ask(self, *words: Any) -> Any:
        """Give a CLUSTER command; the reply undecoded by redis-py's notions of it."""
        with self.client.client() as connection:
            connection.response_callbacks.clear()
            return connection.execute_command("CLUSTER", *words)


class Cluster:
    """Masters ``nodes[0]`` to ``nodes[2]`` with a third of the slots each, replicas after them.

    Args:
        timeout_s: how long a node is silent before the others take it for down (scaled).
    """

    masters_to_begin_with = 3

    def __init__(self, timeout_s: float = 2.0) -> None:
        self.nodes = [Node(timeout_s) for _ in range(2 * self.masters_to_begin_with)]

    @property
    def url(self) -> str:
        """The address as `redis+cluster://…`, of all nodes."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{each.port}" for each in self.nodes)

    @property
    def masters(self) -> list[Node]:
        """Those that have slots, as a node that runs sees it."""
        ports = {port for _, _, port in self._ranges()}
        return [each for each in self.nodes if each.port in ports]

    def master_of(self, key: str) -> Node:
        """Return who has the slot of ``key``, as a node that runs sees it."""
        return self.master_of_slot(key_slot(key.encode()))

    def master_of_slot(self, slot: int) -> Node:
        """Return who has a slot, as a node that runs sees it.

        Raises:
            LookupError: nobody has.
        """
        for first, last, port in self._ranges():
            if first <= slot <= last:
                return next(each for each in self.nodes if each.port == port)
        raise LookupError(f"nobody has slot {slot}")

    def start(self) -> Self:
        """Start all; return when each knows all, and every replica has caught up."""
        count = self.masters_to_begin_with
        for node in self.nodes:
            node.start()
        for number, node in enumerate(self.nodes):
            node.ask("SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(self.nodes[:count]):
            first, end = SLOTS * number // count, SLOTS * (number + 1) // count
            node.ask("ADDSLOTSRANGE", first, end - 1)
        for number, node in enumerate(self.nodes):
            node.known = True
            for other in self.nodes[:number]:
                node.ask("MEET", "127.0.0.1", other.port, other.bus_port)
        wait_until(self._met, every_s=0.02, limit_s=30, what="all nodes to have met")
        for master, replica in zip(self.nodes, self.nodes[count:], strict=False):
            replica.ask("REPLICATE", master.id)
        self.settle()
        return self

    def stop(self) -> None:
        """Kill all."""
        for node in self.nodes:
            node.stop()

    def settle(self) -> None:
        """Wait until all nodes agree, all slots are served and every replica has all data."""
        wait_until(self._whole, every_s=0.02, limit_s=60, what="the Cluster to be whole")

    def heal(self) -> None:
        """Bring back what was frozen or killed, as replicas of who took its place."""
        for node in self.nodes:
            if node.running:
                node.resume()
            else:
                node.start()
        self.settle()

    def move(self, slot: int, to: Node) -> None:
        """Move a slot the way redis-cli does, key by key."""
        origin = self.master_of_slot(slot)
        self.begin_move(slot, to)
        self.move_keys(slot, origin, to)
        self.end_move(slot, origin, to)

    def move_whole(self, slot: int, to: Node) -> None:
        """Move a slot in one go, as Valkey 9 can.

        Raises:
            redis.ResponseError: this server can't.
        """
        origin = self.master_of_slot(slot)
        origin.ask("MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", to.id)
        wait_until(lambda: self.master_of_slot(slot) is to, limit_s=20, what="the slot to move")

    def begin_move(self, slot: int, to: Node) -> None:
        """Have the owner send askers of missing keys to ``to``."""
        origin = self.master_of_slot(slot)
        to.ask("SETSLOT", slot, "IMPORTING", origin.id)
        origin.ask("SETSLOT", slot, "MIGRATING", to.id)

    def move_keys(self, slot: int, origin: Node, to: Node) -> int:
        """Move the keys there are; return how many."""
        moved = 0
        while keys := origin.ask("GETKEYSINSLOT", slot, 1):
            origin.client.migrate("127.0.0.1", to.port, keys, 0, 5000)
            moved += 1
        return moved

    def end_move(self, slot: int, origin: Node, to: Node) -> None:
        """Make ``to`` the owner, and tell all masters."""
        for node in (to, origin, *(each for each in self.masters if each not in (to, origin))):
            node.ask("SETSLOT", slot, "NODE", to.id)

    def _ranges(self) -> list[tuple[int, int, int]]:
        """Return first slot, last slot and port of its master, as a node that runs sees it."""
        for node in self.nodes:
            with contextlib.suppress(redis.RedisError):
                if node.running and self._answers(node):
                    return self._ranges_of(node)
        raise LookupError("no node runs")

    @staticmethod
    def _ranges_of(node: Node) -> list[tuple[int, int, int]]:
        return sorted((first, last, master[1]) for first, last, master, *_ in node.ask("SLOTS"))

    @staticmethod
    def _answers(node: Node) -> bool:
        """Whether it is not frozen: its state is that of a stopped process."""
        stat = Path(f"/proc/{node.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] != "T"

    def _met(self) -> bool:
        return all(len(self._known(node)) == len(self.nodes) for node in self.nodes)

    @staticmethod
    def _known(node: Node) -> list[list[str]]:
        lines = [line.split() for line in str(node.ask("NODES")).splitlines()]
        return [words for words in lines if "handshake" not in words[2]]

    def _whole(self) -> bool:
        with contextlib.suppress(redis.RedisError, LookupError):
            owners = {tuple(self._ranges_of(node)) for node in self.nodes}
            calm = all("fail" not in words[2] for node in self.nodes for words in self._known(node))
            served = {"cluster_state:ok", f"cluster_slots_ok:{SLOTS}"}
            all_served = all(served <= set(node.ask("INFO").split()) for node in self.nodes)
            return len(owners) == 1 and calm and all_served and self._caught_up()
        return False

    def _caught_up(self) -> bool:
        """Whether each master's replica has what is written to the master now."""
        for node in self.masters:
            words = (f"settled{{{number}}}" for number in range(SLOTS))
            key = next(word for word in words if self.master_of(word) is node)
            with node.client.client() as connection:
                connection.set(key, 1, px=1000)
                if connection.wait(1, 100) < 1:
                    return False
        return True

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
