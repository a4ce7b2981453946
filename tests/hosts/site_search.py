"""Asks the search of the built site what newcomers ask, in Chromium: `make docs`, then `python tests/hosts/site_search.py`.

Prints each question with the page that is listed first, and fails where fewer than LEAST are the right ones.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

SITE = Path(__file__).resolve().parents[2] / "site"
LEAST = 18
WAIT_S = 4.0
# what somebody types who does not know ctxfold's words, and the pages that answer it
QUERIES: dict[str, tuple[str, ...]] = {
    "install": ("index", "tutorials"),
    "getting started": ("index", "tutorials"),
    "langchain agent memory": ("langchain-agents", "langchain"),
    "llamaindex memory": ("llamaindex",),
    "fastapi streaming": ("recipes",),
    "streamlit": ("recipes",),
    "ollama": ("recipes", "llamaindex", "engine"),
    "replace ConversationBufferMemory": ("migration",),
    "SummarizationMiddleware": ("migration", "recipes", "comparison"),
    "postgres": ("scaling", "recipes"),
    "delete user data": ("sessions",),
    "gdpr erase": ("sessions",),
    "pin a message": ("sessions",),
    "search old messages": ("sessions",),
    "token limit exceeded": ("troubleshooting", "faq", "engine"),
    "custom summarizer": ("strategies",),
    "opentelemetry": ("tracing",),
    "compare mem0": ("comparison",),
    "import chatgpt conversations": ("cli", "faq"),
    "reasoning models thinking": ("engine", "faq", "langchain", "llamaindex"),
}
PROBE = """<!doctype html><iframe src="/index.html?q={query}" width="1280" height="900"></iframe><pre id="found"></pre>
<script>
const wait = new Image();
wait.onload = wait.onerror = () => {{
    const page = document.querySelector("iframe").contentDocument;
    const links = [...page.querySelectorAll("a.md-search-result__link")];
    document.querySelector("#found").textContent = links.map((link) => link.getAttribute("href")).join("\\n");
}};
wait.src = "/wait.png";
document.body.append(wait);
</script>"""


class Served(SimpleHTTPRequestHandler):
    """The site, a page that asks its search one question, and a picture that takes long, so that the page waits for the answer."""

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        if self.path.startswith("/probe/"):
            body = PROBE.format(query=self.path.removeprefix("/probe/")).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        if self.path == "/wait.png":
            time.sleep(WAIT_S)
        super().do_GET()


def first_hit(browser: str, port: int, query: str) -> str:
    url = f"http://127.0.0.1:{port}/probe/{quote(query)}"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    links = unescape(found[1]).split() if found else []
    return links[0].rpartition("/")[2].partition(".html")[0] if links else ""


def main() -> int:
    browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
    )
    if not browser:
        raise SystemExit("no Chromium: install it, and run this again")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Served, directory=str(SITE)))
    Thread(target=server.serve_forever, daemon=True).start()
    right = 0
    for query, pages in QUERIES.items():
        hit = first_hit(browser, server.server_port, query)
        right += hit in pages
        print(f"{'  ' if hit in pages else '! '}{query}: {hit or 'nothing'}")
    server.shutdown()
    print(f"{right} of {len(QUERIES)}")
    return 0 if right >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
