# mypy: disable-error-code="import-untyped", allow-untyped-decorators
"""View that has a lock for longer than its transaction."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from relock import AcquireTimeoutError

from billing.apps import locks
from billing.models import Invoice


@transaction.non_atomic_requests  # with ATOMIC_REQUESTS the lock would be released before the commit
def correct(_request: HttpRequest, number: int) -> JsonResponse:
    """Correct an invoice: the commit comes first, then the release."""
    try:
        with locks().lock(f"invoices:{number}", timeout=2.0) as held, transaction.atomic():
            fence = held.ensure()
            changed = Invoice.objects.filter(pk=number, fence__lte=fence).update(customer="corrected", fence=fence)
    except AcquireTimeoutError:
        return JsonResponse({"detail": "busy"}, status=409)
    return JsonResponse({"changed": changed})
