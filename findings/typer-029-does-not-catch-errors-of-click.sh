#!/bin/sh
# typer 0.29.2 beside click 8.5.1.
# Typer carries a copy of click, and its exceptions are not click's: a command that raises click.UsageError, click.Abort or
# click.BadParameter, as commands of Typer programs did for years, ends with a traceback and exit code 1 and not with the message and 2.
# Seen: same Abort False, same BadParameter False; click.UsageError: exit code 1 and no text; typer.BadParameter: exit code 2 and "no such place".
# Exits with 0 as long as that is so.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/python" -m pip install -q "typer==0.29.2" "click==8.5.1" 2>/dev/null
cat >"$folder/run.py" <<'PROGRAM'
import click
import typer
from typer.testing import CliRunner


def run(error):
    app = typer.Typer()

    @app.command()
    def main():
        raise error

    return CliRunner().invoke(app, [])


print("same Abort", typer.Abort is click.exceptions.Abort, "same BadParameter", typer.BadParameter is click.BadParameter)
assert typer.Abort is not click.exceptions.Abort
assert typer.BadParameter is not click.BadParameter
theirs = run(click.UsageError("no such place"))
print("click.UsageError:", theirs.exit_code, repr(theirs.output))
assert theirs.exit_code == 1
assert "no such place" not in theirs.output
assert isinstance(theirs.exception, click.UsageError)
own = run(typer.BadParameter("no such place"))
print("typer.BadParameter:", own.exit_code)
assert own.exit_code == 2
assert "no such place" in own.output
PROGRAM
"$folder/env/bin/python" "$folder/run.py"
