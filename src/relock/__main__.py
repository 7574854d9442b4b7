"""Command line: ``python -m relock``."""

from relock.cli import main

if __name__ == "__main__":
    main()
