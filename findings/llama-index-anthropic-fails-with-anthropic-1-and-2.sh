#!/bin/sh
# llama-index-llms-anthropic 0.12.3 with llama-index-core 0.14.25, and anthropic 2.14.0 and 1.17.0.
# The package asks for `anthropic>=0.75.0` without an upper limit, so pip installs anthropic 2 beside it. Each request then fails before
# anything is sent: with 2.14.0 `MessageParam` is a Union, which the package calls, and with 1.17.0 `messages.create` knows no
# `temperature`, which the package always passes.
# Seen: 2.14.0 TypeError: Cannot instantiate typing.Union
#       1.17.0 TypeError: Messages.create() got an unexpected keyword argument 'temperature'
# Exits with 0 as long as both fail.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cat > "$folder/try.py" <<'PY'
from importlib.metadata import version

from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.anthropic import Anthropic

llm = Anthropic(model="claude-sonnet-4-5", api_key="k", base_url="http://127.0.0.1:9", max_retries=0)
try:
    llm.chat([ChatMessage(role="user", content="Hello.")])
except TypeError as error:
    print(version("anthropic"), "TypeError:", error)
else:
    raise SystemExit("it works now")
PY
for release in 2.14.0 1.17.0; do
    "$folder/venv/bin/pip" install -q 'llama-index-core==0.14.25' 'llama-index-llms-anthropic==0.12.3' "anthropic==$release" 2>/dev/null
    "$folder/venv/bin/python" -W ignore "$folder/try.py"
done
