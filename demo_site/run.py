"""Start the demo with one command: ``python -m demo_site.run`` (or ``make demo``).

It brings its own Valkey, database, Celery worker, beat and web server, runs the race once, prints
what came of it, and stays up until Ctrl-C. With ``--once`` it leaves after the race, with an exit
code that says whether all figures were right. Everything it writes lies in a temporary directory,
which is removed at the end, or kept when something failed.
"""

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import FrameType

from httpx import HTTPError

from demo_site.addresses import without_password
from demo_site.runner import redis_server
from demo_site.runner.children import ChildFailed
from demo_site.runner.screen import Screen

SUCCESS, FAILURE, INTERRUPTED = 0, 1, 130
# Buyers pay one after another at the locked door, and none of them waits there for ever.
MOST_STOCK = 40
MOST_BUYERS = 100
# Each buyer of a race occupies a thread, and one web process may get them all.
SPARE_THREADS = 8


class Stopped(BaseException):
    """Ctrl-C or SIGTERM. Not an Exception, so that no code takes it for a failure of its own."""


def main() -> int:
    """Run the demo and return the exit code."""
    options = parse(sys.argv[1:])
    screen = Screen()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    directory = Path(tempfile.mkdtemp(prefix="lockapp-demo-"))
    code = FAILURE
    try:
        with ExitStack() as stack:
            try:
                code = _run(options, screen, directory, stack)
            finally:
                _ignore_signals()
                screen.say("Stopping ...")
    except Stopped:
        screen.say("Stopped before the race was over.")
        code = INTERRUPTED
    except redis_server.NoServer as error:
        screen.say(f"[bold red]{error}[/]")
    except ChildFailed as error:
        screen.failure(error)
    finally:
        if code == FAILURE:
            screen.say(f"The logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return code


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m demo_site.run", description="Start the demo shop and run the race."
    )
    parser.add_argument("--once", action="store_true", help="leave after the race")
    parser.add_argument(
        "--port", type=int, default=8000, help="of the site; 0 for a free one (default: 8000)"
    )
    parser.add_argument("--buyers", type=_positive, default=20, help="in each race (default: 20)")
    parser.add_argument("--stock", type=_positive, default=5, help="raced for (default: 5)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--redis", metavar="URL", help="use this Redis or Valkey server")
    which.add_argument(
        "--use-system-redis",
        action="store_true",
        help="use the server at REDIS_URL, or start the one found on PATH",
    )
    options = parser.parse_args(arguments)
    if options.stock > MOST_STOCK or options.buyers > MOST_BUYERS:
        parser.error(f"At most {MOST_BUYERS} buyers and a stock of {MOST_STOCK}.")
    if options.buyers <= options.stock:
        parser.error("--buyers must be more than --stock, or there is nothing to race for.")
    return options


def _run(options: argparse.Namespace, screen: Screen, directory: Path, stack: ExitStack) -> int:
    prefix = f"lockapp-demo-{secrets.token_hex(3)}"
    with screen.step("Looking for Redis" if options.redis else "Starting Redis or Valkey"):
        redis_url = stack.enter_context(_redis(options, directory, prefix))
    password = os.environ.get("DEMO_PASSWORD") or secrets.token_urlsafe(6)
    os.environ.update(
        DJANGO_SETTINGS_MODULE="demo_site.settings",
        LOCKAPP_REDIS_URL=redis_url,
        DATABASE_URL=os.environ.get("DATABASE_URL") or f"sqlite:///{directory / 'demo.sqlite3'}",
        DEMO_PREFIX=prefix,
        DEMO_SECRET_KEY=secrets.token_urlsafe(48),
        DEMO_PASSWORD=password,
        PYTHONUNBUFFERED="1",
    )

    # Only now: the settings read the environment above when they are imported.
    import django

    django.setup()
    from django.core.management import call_command
    from django.urls import reverse

    from demo_site.runner.site import Site
    from demo_site.runner.verdict import race_and_judge

    with screen.step("Creating the database"):
        call_command("migrate", verbosity=0)
        call_command("seed_shop", buyers=options.buyers, stock=options.stock, verbosity=0)
    site = Site(stack, directory)
    with screen.step("Starting the web site, a Celery worker and beat"):
        site.start_worker()
        site.start_beat()
        site.start_web(options.port, threads=options.buyers + SPARE_THREADS)
        site.wait_until_ready()
    if options.port not in (0, site.port):
        screen.say(f"[yellow]Port {options.port} is taken, so the site is on {site.port}.[/]")
    screen.addresses(
        {
            "Shop": f"{site.url}/",
            "Locks": f"{site.url}{reverse('admin:lockapp_livelock_changelist')}",
            "Admin": f"{site.url}/admin/",
            "Login": f"admin / {password}",
            "Redis": without_password(redis_url),
            "Logs": str(directory),
        }
    )

    try:
        figures = race_and_judge(site, screen, options.buyers, options.stock, password)
    except HTTPError:
        site.require_alive()  # the likely reason, and its log says more than a refused connection
        raise
    screen.figures(figures)
    code = SUCCESS if all(figure.right for figure in figures) else FAILURE
    if code == SUCCESS:
        screen.say("[bold green]All figures are right.[/]")
    else:
        screen.say("[bold red]Some figures are wrong.[/]")
    if not options.once:
        screen.say(f"The shop stays open at {site.url}/ until Ctrl-C.")
        _stay(site.require_alive)
    return code


def _redis(
    options: argparse.Namespace, directory: Path, prefix: str
) -> AbstractContextManager[str]:
    if options.redis:
        return redis_server.foreign_server(options.redis, prefix)
    if not options.use_system_redis:
        return redis_server.own_server(redis_server.embedded_binary(), directory)
    if url := os.environ.get("REDIS_URL"):
        return redis_server.foreign_server(url, prefix)
    return redis_server.own_server(redis_server.system_binary(), directory)


def _stay(require_alive: Callable[[], None]) -> None:
    try:
        while True:
            require_alive()
            time.sleep(0.5)
    except Stopped:
        pass


def _stop(signum: int, frame: FrameType | None) -> None:
    _ignore_signals()
    raise Stopped


def _ignore_signals() -> None:
    # What follows takes seconds at most, and an impatient second Ctrl-C would leave processes
    # behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
