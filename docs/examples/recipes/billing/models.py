# mypy: disable-error-code="import-untyped", allow-subclassing-any
"""Invoices, each with the greatest fencing token that has written it."""

from django.db import models


class Invoice(models.Model):
    """An invoice that is sent once."""

    customer = models.CharField(max_length=50)
    is_sent = models.BooleanField(default=False)
    fence = models.BigIntegerField(default=0)

    class Meta:
        """Names the app, for modules that import this file by another path."""

        app_label = "billing"
