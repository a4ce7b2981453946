from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from ctxfold import ConfigError
from ctxfold.tokens.text import RatioCounter, TextCounter, TiktokenCounter, encoding_name, text_counter
from tests.timing import cpu_s

O200K_FILE = "fb374d419588a4632f3f557e76b4b70aebbca790"
SAMPLES = [
    "",
    "Hello, world! It's 1234567 o'clock; we'll see JSON: {\"key\": [1, 2.5, null]}\r\n\r\n  indented\tTABS",
    "CamelCaseWords snake_case_words https://example.org/a/b?c=d&e=f#g 🙂👩‍👩‍👧 e\u0301 naïve Straße",
    "上下文窗口满了,旧消息会被摘要。日本語のテキスト、한국어 텍스트. Привет, мир! مرحبا",
    "<|endoftext|><|im_start|>system",
    "    \n\n\n\t  \n trailing   ",
]


def bundled_folder() -> Path:
    spec = find_spec("llama_index")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "core" / "_static" / "tiktoken_cache"


Pair = tuple[TiktokenCounter, tiktoken.Encoding]


def reference(name: str) -> tiktoken.Encoding:
    """tiktoken's own loader, pointed at the bundled files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(bundled_folder()))
        return tiktoken.get_encoding(name)


@pytest.fixture(scope="module")
def o200k() -> tiktoken.Encoding:
    return reference("o200k_base")


@pytest.fixture(params=["o200k_base", "cl100k_base"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return TiktokenCounter(request.param, allow_download=False), reference(request.param)


@pytest.mark.parametrize("text", SAMPLES)
def test_counts_equal_tiktokens_own(pair: Pair, text: str) -> None:
    counter, theirs = pair
    assert counter.count(text) == len(theirs.encode_ordinary(text))


def test_long_text_in_blocks_counts_like_the_whole(pair: Pair) -> None:
    counter, theirs = pair
    rows = [{"id": n, "text": SAMPLES[n % len(SAMPLES)], "Ratio": n / 7} for n in range(400)]
    for text in (json.dumps(rows, indent=1), json.dumps(rows, ensure_ascii=False), "\n".join(SAMPLES * 50)):
        assert len(text) > 10_000
        assert counter.count(text) == len(theirs.encode_ordinary(text))


@given(st.text(max_size=300))
def test_any_text_counts_like_tiktoken(o200k: tiktoken.Encoding, text: str) -> None:
    assert TiktokenCounter(allow_download=False).count(text) == len(o200k.encode_ordinary(text))


@pytest.mark.parametrize("character", ["a", " ", "!", "汉", "1", "\n", "e\u0301", "'"])
def test_a_megabyte_of_one_character_takes_linear_time(character: str) -> None:
    counter = TiktokenCounter(allow_download=False)
    short, long = character * 20_000, character * (1_000_000 // len(character))
    expected = counter.count(short) * len(long) / len(short)
    assert counter.count(long) == pytest.approx(expected, rel=0.1)
    assert cpu_s(lambda: counter.count(long), runs=1) < 10


def test_lone_surrogates_and_special_tokens_are_plain_text() -> None:
    for counter in (TiktokenCounter(allow_download=False), RatioCounter()):
        assert counter.count("a\ud800b") > 0
        assert counter.count("\udc00" * 5_000) > 0
        assert counter.count("<|endoftext|>") > 1
        assert counter.count("\x00") == 1
    exact = TiktokenCounter(allow_download=False)
    assert exact.count("a\ud800b") == exact.count("a\ufffdb")


def test_unknown_encoding_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="'nope' is not one of 2: use cl100k_base or o200k_base"):
        TiktokenCounter("nope")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (None, "o200k_base"),
        ("lookup", "o200k_base"),
        ("gpt-4o-mini", "o200k_base"),
        ("openai/gpt-4.1", "o200k_base"),
        ("ft:gpt-4o:acme", "o200k_base"),
        ("GPT-5-nano", "o200k_base"),
        ("gpt-6", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("ft:gpt-3.5-turbo-0613:acme", "cl100k_base"),
        ("text-embedding-3-small", "cl100k_base"),
    ],
)
def test_encoding_by_model_name(model: str | None, name: str) -> None:
    assert encoding_name(model) == name
    assert text_counter(model, allow_download=False).id == f"tiktoken:{name}"


def test_explicit_encoding_wins_over_the_model() -> None:
    assert text_counter("gpt-4", encoding="o200k_base").id == "tiktoken:o200k_base"


def test_one_counter_serves_many_threads() -> None:
    counter = text_counter()
    expected = [counter.count(text) for text in SAMPLES]
    with ThreadPoolExecutor(8) as pool:
        rounds = pool.map(lambda _: [text_counter().count(text) for text in SAMPLES], range(64))
        assert all(counts == expected for counts in rounds)


def test_ratio_by_character_class() -> None:
    counter = RatioCounter()
    assert counter.count("") == 0
    assert counter.count("a") == 1
    assert counter.count("a" * 400) == 100
    assert counter.count("汉" * 100) == 60
    assert counter.count("é" * 100) == 45
    assert counter.count("😀" * 100) == 150
    assert counter.count("a" * 400 + "汉" * 100 + "é" * 100 + "😀" * 100) == 355
    assert counter.id == "ratio:4,0.6,0.45,1.5"


def test_ratio_parameters_per_row() -> None:
    counter = RatioCounter(ascii_per_token=3.3, cjk_tokens_per_char=0.8)
    assert counter.count("a" * 330) == 100
    assert counter.count("a" * 331) == 101  # rounded up, never down
    assert counter.count("汉" * 10) == 8
    assert counter.id == "ratio:3.3,0.8,0.45,1.5"
    with pytest.raises(ConfigError, match=r"ascii_per_token is 0: give a number from 0\.01 to 100"):
        RatioCounter(ascii_per_token=0)
    with pytest.raises(ConfigError, match="cjk_tokens_per_char is nan"):
        RatioCounter(cjk_tokens_per_char=float("nan"))


@given(st.text(max_size=200), st.text(max_size=200))
def test_ratio_is_monotone_and_at_most_one_over_when_split(one: str, two: str) -> None:
    counter: TextCounter = RatioCounter()
    parts = counter.count(one) + counter.count(two)
    assert parts - 1 <= counter.count(one + two) <= parts


# ---- processes of their own: what a machine without encoding files does


def run_isolated(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The code with no llama_index in sight and every cache folder empty, in a new process."""
    hide = "import sys; sys.modules['llama_index'] = None\nimport importlib.util as u, types\n"
    hide += "real = u.find_spec; u.find_spec = lambda n, p=None: None if n == 'llama_index' else real(n, p)\n"
    kept = {key: os.environ[key] for key in ("PATH", "SYSTEMROOT") if key in os.environ}
    return subprocess.run(
        [sys.executable, "-c", hide + code],
        env={
            **kept,
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "CTXFOLD_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


FALL_BACK = """
import warnings
warnings.simplefilter("always")
from ctxfold.tokens.text import text_counter
print(text_counter().id, text_counter("gpt-4").id, text_counter("gpt-4").count("a" * 400))
"""


class BlackHole(socket.socket):
    """A proxy that lets anybody connect and never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.setblocking(False)
        self.url = f"http://127.0.0.1:{self.getsockname()[1]}"

    def callers(self) -> int:
        """How many have connected since the last call."""
        count = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                self.accept()[0].close()
                count += 1
        return count


@pytest.fixture
def black_hole() -> Iterator[BlackHole]:
    with BlackHole() as hole:
        yield hole


def test_offline_without_files_estimates_at_once_and_warns_once(tmp_path: Path, black_hole: BlackHole) -> None:
    done = run_isolated(FALL_BACK, tmp_path, CTXFOLD_OFFLINE="1", https_proxy=black_hole.url)
    assert done.stdout.split() == ["ratio:4,0.6,0.45,1.5", "ratio:4,0.6,0.45,1.5", "100"]
    assert black_hole.callers() == 0, "nobody was asked, so nobody was waited for"
    assert done.stderr.count("CtxWarning") == 1
    assert "downloads are switched off" in done.stderr
    assert O200K_FILE in done.stderr
    assert "TIKTOKEN_CACHE_DIR" in done.stderr


def test_a_silent_network_costs_the_deadline_once(tmp_path: Path, black_hole: BlackHole) -> None:
    done = run_isolated(FALL_BACK.replace('"gpt-4"', "None"), tmp_path, https_proxy=black_hole.url)
    assert done.stdout.startswith("ratio:")
    assert black_hole.callers() <= 1
    assert "did not finish within 3 s" in done.stderr or "timed out" in done.stderr
    assert done.stderr.count("CtxWarning") == 1


def test_a_refused_network_fails_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    patient = "import ctxfold.tokens.text; ctxfold.tokens.text.DOWNLOAD_DEADLINE_S = 60\n"
    done = run_isolated(patient + FALL_BACK, tmp_path, https_proxy=f"http://127.0.0.1:{port}")
    assert "the download failed" in done.stderr
    assert "refused" in done.stderr


@pytest.mark.parametrize("variable", ["TIKTOKEN_CACHE_DIR", "CTXFOLD_CACHE_DIR"])
def test_a_file_in_a_cache_folder_is_found(tmp_path: Path, variable: str) -> None:
    shutil.copy(bundled_folder() / O200K_FILE, tmp_path / O200K_FILE)
    done = run_isolated(
        "from ctxfold.tokens.text import text_counter as c; print(c().id, c().count('hello world'))",
        tmp_path,
        CTXFOLD_OFFLINE="1",
        **{variable: str(tmp_path)},
    )
    assert done.stdout.split() == ["tiktoken:o200k_base", "2"]
    assert done.stderr == ""


def test_a_corrupt_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / O200K_FILE).write_bytes(b"YQ== 0\n")
    done = run_isolated(FALL_BACK, tmp_path, CTXFOLD_OFFLINE="1", TIKTOKEN_CACHE_DIR=str(tmp_path))
    assert done.stdout.startswith("ratio:")


class _Files(http.server.BaseHTTPRequestHandler):
    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


DOWNLOAD = """
import ctxfold.tokens.text as tokens
tokens.DOWNLOAD_DEADLINE_S = 60
from dataclasses import replace
from types import MappingProxyType
tokens._FILES = MappingProxyType({"o200k_base": replace(tokens._FILES["o200k_base"], url=URL)})
print(tokens.text_counter().id)
"""


@pytest.mark.parametrize("intact", [True, False])
def test_a_download_is_verified_and_kept(tmp_path: Path, intact: bool) -> None:
    body = (bundled_folder() / O200K_FILE).read_bytes()
    handler = type("Handler", (_Files,), {"body": body if intact else body[:-1]})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}/o200k_base.tiktoken"
            done = run_isolated(f"URL = {url!r}\n{DOWNLOAD}", tmp_path)
        finally:
            server.shutdown()
            thread.join()
    kept = list((tmp_path / "cache").glob("*"))
    if intact:
        assert done.stdout.strip() == "tiktoken:o200k_base"
        assert [path.read_bytes() for path in kept] == [body]
    else:
        assert done.stdout.startswith("ratio:")
        assert "is not the published file" in done.stderr
        assert kept == []


def test_importing_loads_nothing(tmp_path: Path) -> None:
    code = "import sys, ctxfold.tokens.text\nprint(sorted({'tiktoken', 'httpx', 'sqlalchemy'} & set(sys.modules)))"
    assert run_isolated(code, tmp_path).stdout.strip() == "[]"
