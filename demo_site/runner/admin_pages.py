"""The admin, read as the superuser would with a browser: a login, then pages."""

from types import TracebackType
from typing import Self

import httpx
from django.urls import reverse

TIMEOUT_S = 30.0


class AdminPages:
    """A browser session of the superuser. Use it as a context manager."""

    def __init__(self, url: str, password: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)
        self._password = password

    def __enter__(self) -> Self:
        login = reverse("admin:login")
        self._client.get(login).raise_for_status()
        form = {
            "username": "admin",
            "password": self._password,
            "csrfmiddlewaretoken": self._client.cookies["csrftoken"],
        }
        self._client.post(login, data=form)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def shows_live(self, family: str) -> bool:
        """Whether the page of live locks shows a lock of the family as held, now."""
        return family in self._client.get(reverse("admin:lockapp_livelock_changelist")).text

    def shows_events(self, family: str) -> bool:
        """Whether the list of lock events finds the family."""
        page = reverse("admin:lockapp_lockevent_changelist")
        text = self._client.get(page, params={"q": family}).text
        # What follows the search box, which repeats the question.
        return family in text.partition('id="result_list"')[2]
