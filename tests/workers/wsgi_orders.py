"""Service of the recipe for gunicorn, whose work a test sees and lets go on."""

from workers.recipes import load, work

example = load("recipes/wsgi_orders")
example.WAIT_SECONDS = 60.0  # however busy the machine is
example.ship = work
app = example.app
