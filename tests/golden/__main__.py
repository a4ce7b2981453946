"""Stores the hashes of all golden sessions, or shows what one session sends and shows, for two trees to be compared."""

from __future__ import annotations

import argparse
import time

from tests.golden.sessions import FACES, first_difference, play, seeds, stored, write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="store the hashes of all sessions")
    what.add_argument("--check", action="store_true", help="name every session that differs from the stored ones")
    what.add_argument("--show", type=int, metavar="SEED", help="print every request and window of a session, by step")
    parser.add_argument("faces", nargs="*", metavar="face", help=f"of {', '.join(FACES)}; all by default")
    options = parser.parse_args()
    faces = options.faces or [*FACES]
    if unknown := sorted(set(faces) - FACES.keys()):
        parser.error(f"there is no face {', '.join(unknown)}: choose from {', '.join(FACES)}")
    start = time.perf_counter()
    if options.show is not None:
        for name, seen in play(options.show).canonical():
            print(f"== {name}", *seen, sep="\n")
    elif options.write:
        print(f"{write(faces)} sessions stored in {time.perf_counter() - start:.1f} s")
    else:
        expected = stored()
        checked = [seed for face in faces for seed in seeds(face)]
        found = [problem for seed in checked if (problem := first_difference(seed, expected[seed]))]
        print(*found, f"{len(found)} sessions differ, looked at in {time.perf_counter() - start:.1f} s", sep="\n")
        raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
