"""The parts of ``relock top``. Only `app` and `serve` need the packages of the extra ``top``."""
