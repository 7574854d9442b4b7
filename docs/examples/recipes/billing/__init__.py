"""App of Django that sends invoices."""
