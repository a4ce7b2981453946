"""Names a provider, a model and a strict server for each wire format, for tests that run on all of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from ctxfold import open_backend
from ctxfold.backends.http_backend import HttpBackend
from ctxfold.testing import ModelServer, Scripted, ScriptedCall
from ctxfold.testing.served import Strict
from ctxfold.testing.server import RecordedRequest

__all__ = ["TOUR", "WIRES", "Lookups", "ServedProvider", "opened"]


@dataclass(frozen=True)
class ServedProvider:
    """How a wire is reached, and what the server is as strict as."""

    provider: str
    model: str
    strict: Strict
    mark: str  # the field of a request in which reasoning, or its signature, goes back
    wire: str | None = None
    rooted: bool = False  # the paths of its requests begin at the host

    def settings(self, server: ModelServer) -> dict[str, Any]:
        """Returns the keywords of `ChatCtx` and `CtxLLM`."""
        base_url = server.base_url.removesuffix("/v1") if self.rooted else server.base_url
        named = {"provider": self.provider, "model": self.model, "wire": self.wire}
        return {**named, "base_url": base_url, "api_key": "k", "max_retries": 0}

    def sent_back(self, request: RecordedRequest) -> int:
        """Returns how many replies' reasoning a request has."""
        return json.dumps(dict(request.body)).count(f'"{self.mark}"')


WIRES = {
    "openai_chat": ServedProvider("deepseek", "deepseek-v4-pro", "deepseek", "reasoning_content"),
    "openai_responses": ServedProvider("openai", "gpt-5.2", "openai", "encrypted_content", "openai_responses"),
    "anthropic_messages": ServedProvider("anthropic", "claude-sonnet-4-5", "anthropic", "signature"),
    "gemini": ServedProvider("gemini", "gemini-3-pro-preview", "gemini", "thoughtSignature", "gemini"),
    "bedrock_converse": ServedProvider(
        "bedrock", "anthropic.claude-sonnet-4-5-v1:0", "openai", "reasoningText", rooted=True
    ),
}


def opened(served: ServedProvider, server: ModelServer) -> HttpBackend:
    """Returns the backend that asks the server on this wire."""
    return open_backend(**served.settings(server))


_NAMES = tuple(WIRES)
# from each of the five wires to each other one, once: round their circle by one place at a time, then by two, three and four
TOUR = (*(_NAMES[step * place % 5] for step in range(1, 5) for place in range(5)), _NAMES[0])

_ASKED = re.compile(r"Question (\d+): look it up in (\d+) rounds")


@dataclass
class Lookups:
    """A script: each question is answered after as many rounds of lookups as it says, each with a thought.

    `answered` counts the replies: a server that refused nothing has as many requests.
    """

    answered: int = 0

    def __call__(self, body: Any) -> Scripted:
        self.answered += 1
        if not body.get("tools"):
            return Scripted("The user asked for entries, and got them.")
        # recalled passages and summaries repeat older questions
        found = {
            m[0]: m for one in body["messages"] if one["role"] == "user" for m in _ASKED.finditer(str(one["content"]))
        }
        question = max(found.values(), key=lambda match: int(match[1]))
        asked = next(n for n, one in enumerate(body["messages"]) if question[0] in str(one.get("content")))
        done = sum(one["role"] == "tool" for one in body["messages"][asked:]) // 2
        thought = f"Thought {self.answered} of it, long enough to come in several pieces."
        if done >= int(question[2]):
            return Scripted(f"Answer after {done}.", reasoning=thought)
        calls = tuple(ScriptedCall("look", json.dumps({"key": 10 * done + n})) for n in range(2))
        return Scripted("", reasoning=thought, tool_calls=calls)
