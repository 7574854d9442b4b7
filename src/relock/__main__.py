"""``python -m relock``: the command line."""

from relock.cli import main

if __name__ == "__main__":
    main()
