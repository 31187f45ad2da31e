"""The shop's pages and its two doors.

``POST /orders/`` and ``POST /orders/unlocked/`` run the same checkout. The only difference is one
line: ``@view_lock``.
"""

import functools
import json
import os
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from demo_site.shop import answers, tasks
from demo_site.shop.checkout import SoldOut, place_order
from demo_site.shop.models import Buyer, Order, Product, Report, SkippedCopy
from lockapp.decorators import view_lock

LONGEST_QUEUE_S = 10  # then a buyer is told to try again; each one who waits occupies a thread


class OrderForm(forms.Form):
    """The body of an order, as JSON or as a form: two numbers.

    Deliberately not ``ModelChoiceField``: that would read the product before the lock is taken.
    """

    product = forms.IntegerField(min_value=1)
    buyer = forms.IntegerField(min_value=1)


def order_view(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Make a view of ``(request, product_id, buyer_id)`` out of the request's body.

    Exempt from CSRF protection because these doors know no session: whoever may post here may do
    so by hand.
    """

    @csrf_exempt
    @require_POST
    @functools.wraps(view)
    def from_body(request: HttpRequest) -> HttpResponse:
        form = OrderForm(_body(request))
        if not form.is_valid():
            detail = form.errors.as_text()
            return answers.refused(
                request, HTTPStatus.BAD_REQUEST, answers.MALFORMED, "Malformed order", detail
            )
        order = form.cleaned_data
        return view(request, product_id=order["product"], buyer_id=order["buyer"])

    return from_body


@order_view
@view_lock("product", "{product_id}", wait=LONGEST_QUEUE_S, on_contention=answers.busy)
def create_order(request: HttpRequest, product_id: int, buyer_id: int) -> HttpResponse:
    """Order with the lock: buyers of one product queue up, those of another do not wait."""
    return _order(request, product_id, buyer_id, Order.Door.LOCKED)


@order_view
def create_order_unlocked(request: HttpRequest, product_id: int, buyer_id: int) -> HttpResponse:
    """Order without a lock: the same code, and it oversells."""
    return _order(request, product_id, buyer_id, Order.Door.UNLOCKED)


def _order(request: HttpRequest, product_id: int, buyer_id: int, door: Order.Door) -> HttpResponse:
    try:
        order = place_order(product_id=product_id, buyer_id=buyer_id, door=door)
    except SoldOut as error:
        return answers.refused(
            request, HTTPStatus.CONFLICT, answers.SOLD_OUT, "Sold out", str(error)
        )
    except (Product.DoesNotExist, Buyer.DoesNotExist) as error:
        return answers.refused(
            request, HTTPStatus.NOT_FOUND, answers.UNKNOWN, "No such product or buyer", str(error)
        )
    return answers.created(request, order)


def _body(request: HttpRequest) -> Mapping[str, Any]:
    if request.content_type != "application/json":
        return request.POST
    try:
        body = json.loads(request.body)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    """Products, the latest orders and reports, and the way to everything else."""
    return render(
        request,
        "shop/home.html",
        {
            "products": Product.objects.with_sales(),
            "buyers": Buyer.objects.all(),
            "orders": Order.objects.select_related("product", "buyer")[:12],
            "order_count": Order.objects.count(),
            "reports": Report.objects.all()[:5],
            "skipped_count": SkippedCopy.objects.count(),
            "reports_at_once": tasks.REPORTS_AT_ONCE,
        },
    )


@require_POST
def send_reports(request: HttpRequest) -> HttpResponse:
    """Send the nightly report several times at once; ``@single_instance`` lets one body run."""
    for _ in range(tasks.REPORTS_AT_ONCE):
        tasks.nightly_report.delay()
    messages.success(
        request,
        f"{tasks.REPORTS_AT_ONCE} reports sent. One runs, the others see that and step aside.",
    )
    return HttpResponseRedirect(reverse("shop:home"), status=HTTPStatus.SEE_OTHER)


@require_GET
def health(request: HttpRequest) -> HttpResponse:
    """Say which process serves this connection; touches neither database nor Redis."""
    return JsonResponse({"process": os.getpid()})
