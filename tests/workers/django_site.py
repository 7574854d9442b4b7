"""Site of Django with the app of the recipe: plays scenes, and prints what came of each."""

import json
import os
import sys
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import django
from django.conf import settings

import relock
from workers.recipes import EXAMPLES, NODE_TIMEOUT

settings.configure(
    ALLOWED_HOSTS=["testserver"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1], "ATOMIC_REQUESTS": True}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=["billing.apps.BillingConfig"],
    RELOCK_URL=os.environ["REDIS_URL"],
    ROOT_URLCONF=__name__,
)
sys.path.insert(0, str(EXAMPLES / "recipes"))
app: Any = import_module("billing.apps")
app.Client = partial(relock.Client, node_timeout=NODE_TIMEOUT)
django.setup()
urlpatterns: list[Any] = []


def send() -> Any:
    """Run the command; return the customers to which it sent an invoice, and its exit code."""
    from billing.management.commands import send_invoices
    from django.core.management import CommandError, call_command

    sent: list[str] = []
    code = 0
    with mock.patch.object(send_invoices, "send", lambda invoice: sent.append(invoice.customer)):
        try:
            call_command("send_invoices")
        except CommandError as error:
            code = error.returncode
    return sent, code


def in_a_transaction_at_the_release(address: str) -> Any:
    """Return the status of a view's answer, and whether a transaction was open when it released its lock."""
    from django.db import connection
    from django.test import Client

    is_open: list[bool] = []
    leave = relock.Lock.__exit__

    def leave_and_look(lock: relock.Lock, *error: Any) -> Any:
        is_open.append(connection.in_atomic_block)
        return leave(lock, *error)

    with mock.patch.object(relock.Lock, "__exit__", leave_and_look):
        status = Client().get(address).status_code
    return status, *is_open


def main() -> None:
    """Play the scenes."""
    from billing import views
    from billing.apps import locks
    from billing.models import Invoice
    from django.core.management import call_command
    from django.http import HttpRequest, HttpResponse
    from django.urls import path

    def careless(request: HttpRequest, number: int) -> HttpResponse:
        """Take a lock in a view that is one transaction, because of ATOMIC_REQUESTS."""
        with locks().lock(f"invoices:{number}"):
            return HttpResponse()

    urlpatterns.extend([path("correct/<int:number>", views.correct), path("careless/<int:number>", careless)])
    call_command("migrate", run_syncdb=True, verbosity=0)
    Invoice.objects.create(pk=1, customer="first")
    said: dict[str, Any] = {"correct": in_a_transaction_at_the_release("/correct/1")}
    said["customer"] = Invoice.objects.get(pk=1).customer
    said["careless"] = in_a_transaction_at_the_release("/careless/1")
    with relock.Client(os.environ["REDIS_URL"]) as other, other.lock("send_invoices"):
        said["busy"] = send()
    said["free"] = send()
    said["again"] = send()
    said["fenced"] = Invoice.objects.filter(is_sent=True, fence__gt=0).count()
    print(json.dumps(said))


main()
