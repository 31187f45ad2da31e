"""Processes that contend on request: started once, and used for every contestant in turn."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from types import TracebackType
from typing import Any, Self

from tests.bench.contend import NOTES_SIZE, Grant, Round, Wait, contend, judge, read_notes
from tests.bench.contestants import CONTESTANTS, Maker, Pair, Place, counting

READY_S = 120.0  # for all to be started, or to have joined
SOON_S = 0.1  # between the order and the start, so that all start together


class Crew:
    """``size`` processes at one place. A context manager."""

    def __init__(self, size: int, place: Place) -> None:
        self.size = size
        self.place = place
        self._pipes: list[Connection] = []
        self._workers: list[Any] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")  # nothing of this process comes along
        self._memory = SharedMemory(create=True, size=NOTES_SIZE)
        for number in range(self.size):
            mine, theirs = context.Pipe()
            worker = context.Process(
                target=_work, args=(theirs, number, self.place, self._memory.name), daemon=True
            )
            worker.start()
            theirs.close()
            self._pipes.append(mine)
            self._workers.append(worker)
        for pipe in self._pipes:
            _answer(pipe)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for worker in self._workers:
            worker.join(5)
            if worker.is_alive():
                worker.kill()
                worker.join()
        self._memory.close()
        self._memory.unlink()

    def contend(self, key: str, members: int, seconds: float, hold_s: float = 0.0) -> Round:
        """Let the first ``members`` contend for one lock of the contestant ``key``."""
        name = f"contended-{key}"
        prepare = CONTESTANTS[key].prepare
        if prepare is not None:
            prepare(self.place, name)
        for pipe in self._pipes[:members]:
            pipe.send((key, name))
            _answer(pipe)  # one after the other: joining is not what is measured
        notes = self._memory.buf.cast("Q")
        notes[0] = 0
        with counting(key, self.place) as commands_sent:
            start = time.monotonic() + SOON_S
            end = start + seconds
            for pipe in self._pipes[:members]:
                pipe.send((start, end, hold_s))
            waits: list[list[Wait]] = [_answer(pipe) for pipe in self._pipes[:members]]
            commands = commands_sent()
        grants: list[Grant] = read_notes(notes)
        notes.release()
        return judge(grants, waits, start, end, commands)


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(READY_S):
        raise TimeoutError("a process of the crew does not answer")
    answer = pipe.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _work(pipe: Connection, number: int, place: Place, memory: str) -> None:
    """Obey until the pipe is closed."""
    makers: dict[str, Maker] = {}
    pairs: dict[tuple[str, str], Pair] = {}
    shared = SharedMemory(memory)
    notes = shared.buf.cast("Q")
    try:
        pipe.send(None)
        while True:
            key, name = pipe.recv()
            try:
                if key not in makers:
                    makers[key] = CONTESTANTS[key].join(place)
                if (key, name) not in pairs:
                    pairs[key, name] = makers[key](name)
                take, give = pairs[key, name]
                take()  # connects, loads scripts
                give()
                pipe.send(None)
                start, end, hold_s = pipe.recv()
                pipe.send(contend((take, give), number, start, end, hold_s, notes))
            except EOFError:
                raise
            except Exception as error:  # noqa: BLE001 - the crew's owner raises it
                pipe.send(error)
    except (EOFError, OSError):
        return
    finally:
        notes.release()
        shared.close()
