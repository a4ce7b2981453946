"""`python -m ctxfold.demo`: see `ctxfold.demo.play`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("rich", "langchain", "llama_index")


def main() -> int:
    """Play it; or say which packages it needs, it being made of both faces."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(f'error: the demo needs {" and ".join(missing)}: pip install "ctxfold[all]"', file=sys.stderr)
        return 2
    from ctxfold.demo import play

    return play.main()


if __name__ == "__main__":
    sys.exit(main())
