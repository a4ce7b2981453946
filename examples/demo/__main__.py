"""`python -m examples.demo`: see `examples.demo.play`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("rich", "langchain", "llama_index")


def main() -> int:
    """Runs the demo, or says which of its packages are missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f'error: the demo needs {" and ".join(missing)}: pip install "ctxfold[all]"', file=sys.stderr)
        return 2
    from examples.demo import play

    return play.main()


if __name__ == "__main__":
    sys.exit(main())
