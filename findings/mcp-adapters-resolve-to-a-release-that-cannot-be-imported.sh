#!/bin/sh
# mcp 2.3.0 with langchain-mcp-adapters 0.3.1.
# A project that needs mcp 2 and installs langchain-mcp-adapters beside it gets adapters that cannot be imported: release 0.3.2 wants
# mcp below 2, so pip goes back to 0.3.1, whose requirement is `mcp>=1.24.0` without a limit, and which imports a name that mcp 2 has not.
# Seen: pip selects langchain-mcp-adapters 0.3.1 for mcp 2.3.0 without a complaint, and
# "ImportError: cannot import name 'RequestContext' from 'mcp.shared.context'".
# Exits with 0 as long as the two install together and the import fails.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'mcp==2.3.0' 'langchain-mcp-adapters==0.3.1' 2>/dev/null
"$folder/venv/bin/pip" check | grep -i 'mcp' && { echo "pip says that they do not fit now"; exit 1; }
"$folder/venv/bin/python" -c "import langchain_mcp_adapters.client" 2>"$folder/error" && { echo "the import works now"; exit 1; }
tail -n 1 "$folder/error" | sed 's/ (.*//'
grep -q "cannot import name 'RequestContext' from 'mcp.shared.context'" "$folder/error"
