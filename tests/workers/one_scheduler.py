"""Process of the recipe for APScheduler, whose job fires every tenth of a second."""

from workers.recipes import load

example = load("recipes/one_scheduler")
example.TTL = 4.0
example.EVERY_SECONDS = 0.1
example.JOB_SECONDS = 0.5
example.main()
