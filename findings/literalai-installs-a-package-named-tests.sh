#!/bin/sh
# literalai 0.1.201, which chainlit 2.12.0 needs.
# Its wheel has a top-level package "tests". A project whose own folder tests/ has no __init__.py (a namespace package) and is started as
# "python -m tests.something" runs nothing any more: the regular package in site-packages is taken, although the project's folder comes first.
# Seen: "tests is .../site-packages/tests/__init__.py" and "No module named 'tests.own'".
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
mkdir -p "$folder/project/tests"
echo 'print("own test ran")' >"$folder/project/tests/own.py"
cd "$folder/project"
"$folder/env/bin/python" -m tests.own
"$folder/env/bin/python" -m pip install -q --no-deps "literalai==0.1.201" 2>/dev/null
"$folder/env/bin/python" -c 'import tests; print("tests is", tests.__file__); assert "site-packages" in tests.__file__'
if "$folder/env/bin/python" -m tests.own 2>error.txt; then exit 1; fi
tail -1 error.txt
grep -q "No module named" error.txt
