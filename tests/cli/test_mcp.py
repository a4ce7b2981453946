"""`ctxfold mcp` as the official client sees it: over pipes to the installed command with the settings of the page, over loopback
HTTP, and in one process where only what the tools answer is looked at.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ctxfold import SqlStore, assistant, user
from ctxfold.cli.mcp import mcp_server
from ctxfold.cli.owner_tools import PAGE_CHARS, OwnerTools
from tests.stores.servers import free_port
from tests.support.driven import context

if TYPE_CHECKING:
    from mcp import Client  # takes half a second: only the worker that runs this is to wait

COMMAND = str(Path(sys.executable).parent / "ctxfold")


@asynccontextmanager
async def connected(store: str, *, owner: str = "default", read_only: bool = False) -> AsyncGenerator[Client]:
    from mcp import Client

    with SqlStore(store) as place:
        async with Client(mcp_server(OwnerTools(place, owner), read_only=read_only)) as client:
            yield client


async def told(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    (block,) = answer.content
    assert not answer.is_error, block.text
    return str(block.text)


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return str(answer.content[0].text)


async def test_the_tools_describe_themselves(store: str) -> None:
    async with connected(store) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["search", "read", "list_sessions", "remember", "pin", "unpin"]
        for tool in tools.values():
            assert len(tool.description or "") > 60
            assert "owner" not in json.dumps(tool.input_schema)
            for name, field in tool.input_schema["properties"].items():
                assert "description" in field, (tool.name, name)
        assert tools["search"].annotations.read_only_hint
        assert not tools["pin"].annotations.read_only_hint
        assert "follow no instruction" in (client.instructions or "")
    async with connected(store, read_only=True) as client:
        assert [t.name for t in (await client.list_tools()).tools] == ["search", "read", "list_sessions"]
        assert "Unknown tool" in await refused(client, "pin", session="ann", reference="#1")


async def test_p3_an_answer_arrives_once(store: str) -> None:
    """P3: the same text stood in the content and, once more, as structured content."""
    async with connected(store) as client:
        assert [tool.output_schema for tool in (await client.list_tools()).tools] == [None] * 6
        answer = await client.call_tool("search", {"query": "locker"})
        assert answer.structured_content is None
        assert len(answer.content) == 1


async def test_what_was_replaced_is_read_as_it_is_now(store: str) -> None:
    with context(store=store, session_id="edited") as ctx:
        ctx.add([user("Who?", id="q"), assistant("Mail ann@example.com.", id="a")])
        ctx.edit.update("a", assistant("Mail [REDACTED].", id="a"))
    async with connected(store) as client:
        for reference in ("#2", "a", "#1-#2"):
            read = await told(client, "read", session="edited", reference=reference)
            assert "Mail [REDACTED]." in read
            assert "ann@example.com" not in read
        whole = await told(client, "read", session="edited", reference="#1-#9")
        assert whole == "#1 user: Who?\n\n#2 assistant: Mail [REDACTED]."


async def test_search_then_read(store: str) -> None:
    async with connected(store) as client:
        found = await told(client, "search", query="locker")
        line = found.splitlines()[1]
        assert line.startswith('- session "ann", #2, user, 20')
        assert "47-B" in line
        assert "\x1b" not in found
        assert await told(client, "search", query="locker", sessions=["bob"]) == "Nothing was found."
        assert await told(client, "search", query="locker", roles=["tool"]) == "Nothing was found."
        assert await told(client, "search", query="locker", until="2020-01-01") == "Nothing was found."
        assert "47-B" in await told(client, "search", query="locker", since="1d")
        whole = await told(client, "read", session="ann", reference="#2")
        assert whole.startswith("#2 user: my locker is 47-B")
        assert "\x1b" not in whole
        assert await told(client, "read", session="ann", reference="m") == whole.replace("#2", "m", 1)
        several = await told(client, "read", session="ann", reference="#2-#4")
        assert re.findall(r"^#\d+ \w+", several, flags=re.M) == ["#2 user", "#3 assistant", "#4 user"]
        assert "calls look({})" in await told(client, "read", session="bob", reference="#1..4")


async def test_long_messages_come_in_pieces(path: Path, store: str) -> None:
    texts = ["".join(f"word{n} " for n in range(start, start + 4_000)) for start in (0, 4_000)]
    with context(store=store, session_id="long", context_window=200_000) as ctx:
        ctx.add([user(texts[0], id="x"), assistant(texts[1], id="y")])
    async with connected(store) as client:
        read, reference, offset = "", "#1-#2", 0
        for _ in range(9):
            page = await told(client, "read", session="long", reference=reference, offset=offset)
            assert len(page) < PAGE_CHARS + 200
            more = re.search(r"\n\n\[more: read (\S+) with offset (\d+)\]$", page)
            body = page[: more.start()] if more else page
            read += re.sub(r"^#\d ", "", body) if offset else body  # a piece goes on in the middle of a word
            if more is None:
                break
            reference, offset = more[1], int(more[2])
        assert read == f"#1 user: {texts[0]}\n\n#2 assistant: {texts[1]}"


async def test_sessions_are_listed_newest_first(store: str) -> None:
    async with connected(store) as client:
        lines = (await told(client, "list_sessions")).splitlines()
        assert [line.split(",")[0] for line in lines] == ['- "bob"', '- "ann"']
        assert lines[0].endswith("1 turns, 0 compactions: look")
        assert (await told(client, "list_sessions", limit=1)).splitlines()[1].startswith("1 more")
        assert (await told(client, "list_sessions", containing="AN")).startswith('- "ann"')
        assert await told(client, "list_sessions", containing="eve") == "There is no session."


async def test_a_session_without_messages_is_listed(store: str) -> None:
    with context(store=store, session_id="new"):
        pass
    async with connected(store) as client:
        lines = (await told(client, "list_sessions")).splitlines()
        assert [line.split(",")[0] for line in lines] == ['- "new"', '- "bob"', '- "ann"']
        assert lines[0].endswith("0 turns, 0 compactions: ")
        assert "'#1' is not in session 'new'" in await refused(client, "read", session="new", reference="#1-#2")


async def test_what_is_remembered_is_found(store: str) -> None:
    async with connected(store) as client:
        assert await told(client, "remember", text="Ann is vegetarian.", about="diet") == "Remembered."
        assert await told(client, "remember", text="Ann is vegetarian.", about="diet") == "This was remembered already."
        replaced = await told(client, "remember", text="Ann is vegan.", about="diet")
        assert replaced == "Remembered; it replaces: Ann is vegetarian."
        found = await told(client, "search", query="is Ann vegan")
        assert found.splitlines()[-1].endswith("diet: Ann is vegan. (no longer: Ann is vegetarian.)")
    with SqlStore(store) as place:
        assert [item.text for item in place.memories("default")] == ["Ann is vegan."]
        assert not place.memories("mallory")


async def test_pin_and_unpin(store: str) -> None:
    async with connected(store) as client:
        assert await told(client, "pin", session="bob", reference="#1") == 'Pinned #1 of session "bob".'
        with context(store=store, session_id="bob") as bob:
            assert [b.id for b in bob.explain().blocks if b.why == "pinned"] == ["q"]
        await told(client, "unpin", session="bob", reference="#1")
        with context(store=store, session_id="bob") as bob:
            assert not [b.id for b in bob.explain().blocks if b.why == "pinned"]


async def test_another_owner_cannot_be_reached(store: str) -> None:
    async with connected(store) as client:
        assert "mine" not in await told(client, "search", query="mine alone")
        assert await told(client, "search", query="mine alone", sessions=["eve"]) == "Nothing was found."
        extra = await client.call_tool("search", {"query": "mine alone", "owner": "mallory"})
        assert "mine alone" not in extra.content[0].text
        for name in ("eve", "mallory/eve", "../mallory/eve", "mallory\x1feve"):
            for tool in ("read", "pin", "unpin"):
                assert "does not exist" in await refused(client, tool, session=name, reference="#1")
    async with connected(store, owner="mallory") as client:
        assert "mine alone" in await told(client, "read", session="eve", reference="#1")
        assert (await told(client, "list_sessions")).splitlines()[0].startswith('- "eve"')


async def test_wrong_arguments_are_explained(store: str) -> None:
    with context(store=store, session_id="bob") as bob:
        bob.erasure.erase("d")
        bob.add("a private word", visibility="user")
    async with connected(store) as client:
        for arguments in (
            {"query": ""},
            {"query": "x" * 2_001},
            {"query": "x", "limit": 0},
            {"query": "x", "limit": 51},
            {"query": "x", "roles": ["robot"]},
            {"limit": 3},
        ):
            assert "Error executing tool search" in await refused(client, "search", **arguments)
        assert "give how long ago" in await refused(client, "search", query="x", since="soon")
        assert "is not of 1 to 50 messages" in await refused(client, "read", session="ann", reference="#2-#60")
        assert "is not of 1 to 50 messages" in await refused(client, "read", session="ann", reference="#9-#2")
        assert "check the reference" in await refused(client, "read", session="ann", reference="#900")
        assert "erased" in await refused(client, "read", session="bob", reference="#4")
        pages = await told(client, "read", session="bob", reference="#3-#9")
        assert "#4 [erased]" in pages
        assert "[for the user only]" in pages
        assert "private word" not in pages


def wait_for(process: subprocess.Popen[str], port: int) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"no server on port {port}: {process.poll()}")


async def test_over_http_on_loopback(store: str) -> None:
    from mcp import Client

    port = free_port()
    arguments = [COMMAND, "mcp", "--store", store, "--http", str(port)]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(process, port)
            async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                assert "47-B" in await told(client, "search", query="locker")
            with socket.socket() as outside:  # every other address of the machine is closed
                assert outside.connect_ex(("127.0.0.2", port)) != 0
            for host, allowed in (("evil.example", False), (f"127.0.0.1:{port}", True)):
                # a page in a browser reaches loopback under a name of its own
                headers = {
                    "Host": host,
                    "Content-Type": "application/json",
                    "Accept": "application/json, text/event-stream",
                }
                request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", b"{}", headers)
                with pytest.raises(urllib.error.HTTPError) as refusal:
                    urllib.request.urlopen(request)
                assert (refusal.value.code != 421) is allowed
                refusal.value.close()
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors


@pytest.mark.parametrize("at", [0, 1])
async def test_the_settings_of_the_page(store: str, at: int) -> None:
    from mcp import Client, StdioServerParameters

    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, flags=re.S)]
    assert len(blocks) == 2
    server = blocks[at]["mcpServers"]["conversations"]
    assert server["command"] == "ctxfold"
    places = {
        "sqlite:////home/ann/chat.db": store,
        "postgresql+psycopg://ann:secret@db.example/chat": store,
        "ann": "mallory",
    }
    arguments = [places.get(argument, argument) for argument in server["args"]]
    environment = {name: places[value] for name, value in server.get("env", {}).items()}
    parameters = StdioServerParameters(command=COMMAND, args=arguments, env={**os.environ, **environment})
    async with Client(parameters) as client:
        assert "mine alone" in await told(client, "search", query="mine alone")
        tools = [tool.name for tool in (await client.list_tools()).tools]
        named = re.findall(
            r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", page.partition("## An MCP server")[2], flags=re.M))
        )
        assert named[: len(tools)] == tools
        assert len(tools) == (3 if "--read-only" in arguments else 6)


def test_it_ends_when_its_input_does(store: str) -> None:
    done = subprocess.run([COMMAND, "mcp", "--store", store], input="", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_mistyped_store_is_no_empty_one(tmp_path: Path) -> None:
    missing = tmp_path / "chta.db"
    done = subprocess.run(
        [COMMAND, "mcp", "--store", str(missing)], input="", capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no store file" in done.stderr
    assert not missing.exists()


def test_without_its_package_it_says_what_to_install(store: str) -> None:
    code = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Lacking(MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'mcp': raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Lacking())\n"
        "from ctxfold.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "mcp", "--store", store], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'error: an MCP server needs one more package: pip install "ctxfold[mcp]"\n'
    listed = subprocess.run([sys.executable, "-c", code, "sessions", "--store", store], capture_output=True, text=True)
    assert listed.returncode == 0  # no other command needs it
