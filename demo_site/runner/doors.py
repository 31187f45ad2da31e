"""The race at a door: all buyers order the same product over HTTP in the same moment."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus

import httpx

from demo_site.runner.screen import Update
from demo_site.shop.answers import SOLD_OUT
from demo_site.shop.models import Buyer, Product

TIMEOUT_S = 60.0
ORDERED, SOLD_OUT_ANSWER = "ordered", "sold out"


@dataclass(frozen=True)
class DoorResult:
    """What the buyers were told, and what the database says afterwards."""

    buyers: int
    ordered: int
    sold_out: int
    others: dict[str, int]  # answers that no buyer should get, and how many got them
    orders: int
    stock: int
    web_processes: int


class Seats:
    """Spreads the buyers evenly over the web processes, as a load balancer in front would.

    The kernel gives a connection to whichever process is quicker, which on a busy machine can be
    the same one each time; then a lock inside one process would look as good as a real one.
    """

    TRIES = 100

    def __init__(self, url: str, buyers: int, processes: int) -> None:
        self._url = url
        self._each = -(-buyers // processes)
        self._taken: Counter[int] = Counter()
        self._mutex = threading.Lock()

    @property
    def processes(self) -> int:
        """How many processes have buyers."""
        return len(self._taken)

    def connect(self) -> httpx.Client:
        """Return a client whose connection is open and leads to a process with a free seat."""
        for _ in range(self.TRIES):
            client = httpx.Client(base_url=self._url, timeout=TIMEOUT_S, trust_env=False)
            process = client.get("/health/").raise_for_status().json()["process"]
            with self._mutex:
                if self._taken[process] < self._each:
                    self._taken[process] += 1
                    return client
            client.close()
        raise RuntimeError(f"{self.TRIES} connections in a row led to a full web process")


def race(
    url: str, path: str, product: Product, buyers: int, processes: int, progress: Update
) -> DoorResult:
    """Let the first ``buyers`` buyers order ``product`` at ``path``, all at once."""
    seats = Seats(url, buyers, processes)
    barrier = threading.Barrier(buyers)
    ids = list(Buyer.objects.values_list("pk", flat=True)[:buyers])
    answers: Counter[str] = Counter()
    with ThreadPoolExecutor(max_workers=buyers) as pool:
        orders = [pool.submit(_order, seats, path, product.pk, buyer, barrier) for buyer in ids]
        for order in as_completed(orders):
            answers[order.result()] += 1
            progress(f"{answers.total()} of {buyers} answered")
    product.refresh_from_db()
    return DoorResult(
        buyers=buyers,
        ordered=answers.pop(ORDERED, 0),
        sold_out=answers.pop(SOLD_OUT_ANSWER, 0),
        others=dict(answers),
        orders=product.orders.count(),
        stock=product.stock,
        web_processes=seats.processes,
    )


def _order(seats: Seats, path: str, product: int, buyer: int, barrier: threading.Barrier) -> str:
    # Connected before the start, so that the barrier decides who is first and not a handshake.
    try:
        client = seats.connect()
    except Exception:
        barrier.abort()  # the others must not wait for one who will never come
        raise
    with closing(client):
        barrier.wait(TIMEOUT_S)
        answer = client.post(path, json={"product": product, "buyer": buyer})
    if answer.status_code == HTTPStatus.CREATED:
        return ORDERED
    kind = str(answer.json().get("type")) if "json" in answer.headers["content-type"] else ""
    return SOLD_OUT_ANSWER if kind == SOLD_OUT else f"{answer.status_code} {kind}".strip()
