"""Place an order, look at it, and answer what its run asks."""

from __future__ import annotations

import json

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_GET, require_POST

from shop.models import Order
from shop.runs import regate
from worker import LOCAL, AgentRunRequest, ConflictError, Message, Role, Verdicts

IN_STOCK = 10


class SoldOutError(Exception):
    """There is not as much as was ordered."""


@require_POST
def place(request: HttpRequest) -> HttpResponse:
    asked = json.loads(request.body)
    try:
        order = _order(str(asked["article"]), int(asked.get("quantity", 1)))
    except SoldOutError:
        return JsonResponse({"detail": "we do not have that many"}, status=409)
    return JsonResponse({"id": order.pk, "run": order.run}, status=201)


@transaction.atomic
def _order(article: str, quantity: int) -> Order:
    request = AgentRunRequest(
        configuration="shipping", messages=(Message(role=Role.USER, content=f"Ship {quantity} of {article}."),)
    )
    handle = regate().enqueue(request, connection=connection.connection)  # the driver's, as Django holds it
    transaction.on_commit(handle.wake)
    order: Order = Order.objects.create(article=article, quantity=quantity, run=handle.uuid)
    if quantity > IN_STOCK:
        raise SoldOutError  # takes back the order and its run
    return order


@require_GET
def look(_: HttpRequest, number: int) -> HttpResponse:
    order = get_object_or_404(Order, pk=number)
    shown = regate().show(LOCAL, order.run)
    question = None if shown.waiting is None else shown.waiting.question
    fields = {"id": order.pk, "article": order.article, "quantity": order.quantity, "run": order.run}
    return JsonResponse({**fields, "status": shown.status, "question": question, "answer": shown.answer})


@require_POST
def approve(request: HttpRequest, number: int) -> HttpResponse:
    order = get_object_or_404(Order, pk=number)
    question = str(
        json.loads(request.body)["question"]
    )  # the one that was shown: nobody approves what they did not see
    try:
        regate().decide(LOCAL, order.run, question, Verdicts(default=True, calls={}), via="shop")
    except ConflictError as conflict:
        return JsonResponse({"detail": conflict.message}, status=409)
    return HttpResponse(status=202)
