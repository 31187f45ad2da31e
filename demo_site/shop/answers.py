"""What the order views say: JSON to programs, the home page again to a browser's form.

Refusals are problem documents (RFC 9457) whose ``type`` tells them apart: "sold out" and "somebody
else is buying this right now" are both 409, and a client must retry the second one only.
"""

from http import HTTPStatus

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import reverse

from demo_site.shop.models import Order
from lockapp import NotAcquired

SOLD_OUT = "urn:lockapp-demo:sold-out"
UNKNOWN = "urn:lockapp-demo:unknown-product-or-buyer"
MALFORMED = "urn:lockapp-demo:malformed-order"


def wants_page(request: HttpRequest) -> bool:
    """Whether a person with a browser asks, rather than a program."""
    return request.get_preferred_type(["application/json", "text/html"]) == "text/html"


def created(request: HttpRequest, order: Order) -> HttpResponse:
    """201 with the order, or the home page with a sentence about it."""
    if wants_page(request):
        messages.success(request, f"{order}, paid ({order.payment_reference}).")
        return _home()
    body = {
        "order": order.pk,
        "product": order.product_id,
        "buyer": order.buyer_id,
        "payment_reference": order.payment_reference,
    }
    return JsonResponse(body, status=HTTPStatus.CREATED)


def refused(
    request: HttpRequest, status: HTTPStatus, kind: str, title: str, detail: str = ""
) -> HttpResponse:
    """A problem document, or the home page with its title."""
    if wants_page(request):
        messages.error(request, f"{title}. {detail}".strip())
        return _home()
    body = {"type": kind, "title": title, "status": int(status), "detail": detail}
    return JsonResponse(body, status=status, content_type="application/problem+json")


def busy(request: HttpRequest, refusal: NotAcquired) -> HttpResponse | None:
    """Tell a person that others are buying this; None leaves programs lockapp's own document."""
    if not wants_page(request):
        return None
    messages.warning(request, "Too many people are buying this right now. You were not charged.")
    return _home()


def _home() -> HttpResponse:
    # 303: the browser asks for the page with GET, and a reload doesn't order again.
    return HttpResponseRedirect(reverse("shop:home"), status=HTTPStatus.SEE_OTHER)
