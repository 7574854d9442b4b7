# mypy: disable-error-code="import-untyped", allow-subclassing-any
"""App of Django with one client of relock for each process."""

from django.apps import AppConfig, apps
from django.conf import settings
from relock import Client


class BillingConfig(AppConfig):
    """Makes the client when Django is ready."""

    name = "billing"
    locks: Client

    def ready(self) -> None:
        """Make the client; it sends nothing before its first lock."""
        self.locks = Client(settings.RELOCK_URL)


def locks() -> Client:
    """Return the client of this process."""
    config = apps.get_app_config("billing")
    assert isinstance(config, BillingConfig)
    return config.locks
