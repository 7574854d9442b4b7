# mypy: disable-error-code="import-untyped", allow-subclassing-any
"""Command of Django that runs on one machine at a time: python manage.py send_invoices."""

from billing.apps import locks
from billing.models import Invoice
from django.core.management.base import BaseCommand, CommandError
from relock import AcquireTimeoutError

BUSY = 75  # the exit code if another process sends them, as that of `relock run --no-wait`


class Command(BaseCommand):
    """Sends the invoices that are not sent."""

    help = "Send the invoices that are not sent."

    def handle(self, **_: object) -> None:
        """Send them, unless another process does."""
        try:
            with locks().lock("send_invoices", timeout=0) as held:
                for invoice in Invoice.objects.filter(is_sent=False):
                    fence = held.ensure(5.0)  # LockLostError unless the lock is sure for as long as a mail may take
                    send(invoice)
                    Invoice.objects.filter(pk=invoice.pk, fence__lte=fence).update(is_sent=True, fence=fence)
        except AcquireTimeoutError as busy:
            raise CommandError(f"{busy.holder} sends them", returncode=BUSY) from None


def send(invoice: Invoice) -> None:
    """Stands for a mail to the customer."""
