#!/bin/sh
# chainlit 2.12.0 (Python 3.11).
# An application that keeps the address of its own database in DATABASE_URL, as most hosts set it, cannot run under chainlit as installed:
# chainlit takes the variable for a data layer of its own, whose driver asyncpg is none of its dependencies. Without the variable there is none.
# Seen: "without: None" and "with: ModuleNotFoundError No module named 'asyncpg'".
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "chainlit==2.12.0" 2>/dev/null
cd "$folder"
cat >look.py <<'PROGRAM'
import sys

from chainlit.data import get_data_layer

try:
    print(sys.argv[1] + ":", get_data_layer())
except ModuleNotFoundError as error:
    print(sys.argv[1] + ":", type(error).__name__, error)
PROGRAM
env -u DATABASE_URL "$folder/env/bin/python" look.py without 2>/dev/null | tee without.txt
grep -q "without: None" without.txt
DATABASE_URL=postgresql://app@127.0.0.1/app "$folder/env/bin/python" look.py with 2>/dev/null | tee with.txt
grep -q "with: ModuleNotFoundError No module named 'asyncpg'" with.txt
