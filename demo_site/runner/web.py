"""One web process: waitress with many threads, on a socket that two such processes share.

Two processes, because a lock that works inside one process only would look right with one.

    python -m demo_site.runner.web <socket fd> <ready fd> <threads>
"""

import os
import signal
import socket
import sys
from types import FrameType

from django.contrib.staticfiles.handlers import StaticFilesHandler
from waitress import create_server

from demo_site.wsgi import application


def main() -> None:
    """Serve until SIGTERM."""
    listener, ready, threads = (int(argument) for argument in sys.argv[1:])
    signal.signal(signal.SIGTERM, _leave)
    server = create_server(
        StaticFilesHandler(application),
        sockets=[socket.socket(fileno=listener)],
        threads=threads,
        connection_limit=1000,
    )
    # One byte says that from here on requests are answered: the runner waits for it, not for a
    # number of seconds.
    os.write(ready, b"1")
    os.close(ready)
    server.run()


def _leave(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(0)  # waitress finishes what it serves, then returns from run()


if __name__ == "__main__":
    main()
