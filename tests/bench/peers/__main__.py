"""Builds the programs of other languages: ``python -m bench.peers`` in ``tests``. What can't be built is named."""

import os
import shutil
import subprocess

from bench.peers import GO, NODE


def main() -> None:
    for toolchain in (NODE, GO):
        if shutil.which(toolchain.build[0]) is None:
            print(f"{toolchain.name} is not here: its locks will not be measured")
            continue
        environment = {**os.environ, "CGO_ENABLED": "0"}  # nothing of it needs a compiler of C
        done = subprocess.run(toolchain.build, cwd=toolchain.folder, check=False, env=environment)
        print(f"{toolchain.name}: {'built' if done.returncode == 0 else 'could not be built: not measured'}")


if __name__ == "__main__":
    main()
