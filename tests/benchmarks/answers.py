"""The same model answers questions from what each of several ways puts before it: `answers --base-url URL --model NAME`.

Any server that speaks OpenAI's chat completions will do. Each answer is appended to a file of JSON lines, and a restart goes on
where it ended. Questions with an odd index in their conversation are asked, on which no rule was tuned.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from ctxfold import AgentContext, Message, Prices, assistant, user
from tests.benchmarks.data import DataMissingError, folder
from tests.benchmarks.sheets import Cell, Sheet
from tests.benchmarks.tau_peers import langchain_message

__all__ = ["Answer", "run"]

SETS = ("bfcl_memory", "molweni", "asides")
WINDOWS = (500, 1_000)
QUESTIONS = 60  # of a set
REPLY_TOKENS = 40
TIMEOUT_S = 600.0
SYSTEM = "Answer the question in a few words, from the conversation before it."
PRICES = Prices.relative()
Z = 1.96  # of a 95 % interval
Sent = list[dict[str, str]]
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Question:
    key: str
    text: str
    answer: str
    evidence: tuple[str, ...]  # texts of messages


@dataclass(frozen=True, slots=True)
class Answer:
    """One row of the file: what was asked how, what came back, and whether the evidence stood in the request."""

    set: str
    window: int
    way: str
    question: str
    expected: str
    reply: str
    right: bool
    f1: float
    shown: bool
    prompt_tokens: int
    completion_tokens: int

    @property
    def key(self) -> tuple[str, int, str, str]:
        return self.set, self.window, self.way, self.question


class CharactersBy4:
    id = "chars4"

    def count(self, text: str) -> int:
        return math.ceil(len(text) / 4)


def run(
    *,
    quick: bool = False,
    base_url: str | None = None,
    model: str | None = None,
    results: str = "answers.jsonl",
    questions: int = QUESTIONS,
    sets: Sequence[str] = SETS,
) -> list[Sheet]:
    if base_url is None or model is None:
        raise DataMissingError(
            "no model: give --base-url and --model of a server that speaks OpenAI's chat completions"
        )
    file = Path(results)
    written = [Answer(**json.loads(x)) for x in file.read_text("utf-8").splitlines()] if file.exists() else []
    done = {a.key for a in written}
    asked: set[tuple[str, int, str, str]] = set()
    with (
        httpx.Client(base_url=base_url.rstrip("/"), timeout=TIMEOUT_S) as client,
        file.open("a", encoding="utf-8") as out,
    ):
        for answer in _answers(client, base_url, model, 2 if quick else questions, done, asked, sets):
            written.append(answer)
            out.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
            out.flush()
    return [_sheet([a for a in written if a.key in asked], model, sets)]


def _answers(
    client: httpx.Client,
    base_url: str,
    model: str,
    most: int,
    done: set[tuple[str, int, str, str]],
    asked: set[tuple[str, int, str, str]],
    sets: Sequence[str],
) -> Iterator[Answer]:
    for name in sets:
        conversations = json.loads((folder(name) / "conversations.json").read_text(encoding="utf-8"))
        share = -(-most // len(conversations))
        for window in WINDOWS:
            for conversation in conversations:
                told = [_message(m) for m in conversation["messages"]]
                ways = Ways(told, window, base_url, model)
                for question in _questions(conversation, told)[:share]:
                    for way, shown in ways.named().items():
                        key = (name, window, way, question.key)
                        asked.add(key)
                        if key not in done:
                            yield _asked(client, model, key, question, shown(question))


def _message(raw: dict[str, Any]) -> Message:
    stamp = " ".join(
        filter(None, (f"[{raw['time']}]" if raw.get("time") else "", f"{raw['name']}:" if raw.get("name") else ""))
    )
    return (assistant if raw["role"] == "assistant" else user)(f"{stamp} {raw['text']}".strip(), id=str(raw["id"]))


def _questions(conversation: dict[str, Any], told: Sequence[Message]) -> list[Question]:
    texts = {m.id: m.text for m in told}
    return [
        Question(f"{conversation['id']}/{n}", q["q"], str(q["answer"]), tuple(texts[str(e)] for e in q["evidence"]))
        for n, q in enumerate(conversation["questions"])
        if n % 2 and q.get("answer") and not q.get("before")
    ]


class Ways:
    """What each way shows a model of a conversation, within the same budget of characters / 4."""

    def __init__(self, told: Sequence[Message], window: int, base_url: str, model: str) -> None:
        self.told, self.window, self.base_url, self.model = told, window, base_url, model
        self.budget = window - window // 5
        self._held: dict[str, Any] = {}

    def named(self) -> dict[str, Callable[[Question], Sent]]:
        return {
            "ctxfold": self.ctxfold,
            "trim_messages": self.trimmed,
            "SummarizationMiddleware": self.summarized,
            "LlamaIndex Memory": self.memory,
            "BM25 with neighbours": self.ranked,
            "evidence alone": lambda q: [{"role": "user", "content": text} for text in q.evidence],
        }

    def ctxfold(self, question: Question) -> Sent:
        if "session" not in self._held:
            session = AgentContext(context_window=self.window, counter=CharactersBy4())
            for message in self.told:
                session.add(message)
            self._held["session"] = session
        window = self._held["session"].window(recall=True, question=question.text)
        shown = [{"role": str(m.role), "content": m.text} for m in window.messages]
        return [*shown, *([{"role": "user", "content": window.recalled}] if window.recalled else [])]

    def trimmed(self, question: Question) -> Sent:
        from langchain_core.messages import trim_messages

        room = self.budget - tokens(question.text)
        kept = trim_messages(
            [langchain_message(m) for m in self.told], max_tokens=room, token_counter=_counted, strategy="last"
        )
        return [_of_langchain(m) for m in kept]

    def summarized(self, question: Question) -> Sent:
        from langchain.agents.middleware import SummarizationMiddleware
        from langchain_openai import ChatOpenAI
        from langgraph.runtime import Runtime

        if "summary" not in self._held:
            model = ChatOpenAI(base_url=self.base_url, api_key="none", model=self.model, temperature=0, max_tokens=160)
            middleware = SummarizationMiddleware(
                model,
                trigger=("tokens", self.budget),
                keep=("tokens", self.budget // 2),
                token_counter=_counted,
                trim_tokens_to_summarize=2_000,
            )
            messages = [langchain_message(m) for m in self.told]
            changed = middleware.before_model({"messages": messages}, Runtime())
            self._held["summary"] = messages if changed is None else changed["messages"][1:]
        return [_of_langchain(m) for m in self._held["summary"]]

    def memory(self, question: Question) -> Sent:
        from llama_index.core.base.llms.types import ChatMessage
        from llama_index.core.memory import Memory

        if "memory" not in self._held:

            async def kept() -> list[Any]:
                memory = Memory.from_defaults(
                    session_id="answers", token_limit=self.budget, tokenizer_fn=lambda text: [0] * tokens(text)
                )
                await memory.aput_messages([ChatMessage(role=str(m.role), content=m.text) for m in self.told])
                return await memory.aget()

            self._held["memory"] = asyncio.run(kept())
        return [{"role": str(m.role.value), "content": m.content or ""} for m in self._held["memory"]]

    def ranked(self, question: Question) -> Sent:
        room, chosen = self.budget - tokens(question.text), set[int]()
        for index in self._ranking(question.text):
            cost = tokens(self.told[index].text) + 4
            if cost <= room:
                room -= cost
                chosen.add(index)
        return [{"role": str(self.told[i].role), "content": self.told[i].text} for i in sorted(chosen)]

    def _ranking(self, question: str) -> list[int]:
        """Returns the messages by BM25 (k1 1.2, b 0.75); the two before and after a message speak for it."""
        if "counts" not in self._held:
            self._held["counts"] = [Counter(words(m.text)) for m in self.told]
        counts: list[Counter[str]] = self._held["counts"]
        sizes = [c.total() for c in counts]
        mean, n = sum(sizes) / len(sizes), len(counts)
        score = [0.0] * n
        for term in set(words(question)):
            spread = sum(term in c for c in counts)
            weight = math.log(1 + (n - spread + 0.5) / (spread + 0.5))
            for i, c in enumerate(counts):
                if c[term]:
                    score[i] += weight * c[term] * 2.2 / (c[term] + 1.2 * (0.25 + 0.75 * sizes[i] / mean))
        padded = [0.0, 0.0, *score, 0.0, 0.0]
        near = [
            padded[i + 2] + 0.5 * max(padded[i + 1], padded[i + 3]) + 0.25 * max(padded[i], padded[i + 4])
            for i in range(n)
        ]
        return sorted((i for i in range(n) if near[i] > 0), key=lambda i: -near[i])


def tokens(text: str) -> int:
    return math.ceil(len(text) / 4)


def words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _counted(messages: Any) -> int:
    return sum(tokens(m.text) + 4 for m in (messages if isinstance(messages, list) else [messages]))


def _of_langchain(message: Any) -> dict[str, str]:
    return {"role": {"human": "user", "ai": "assistant"}.get(message.type, message.type), "content": message.text}


def _asked(client: httpx.Client, model: str, key: tuple[str, int, str, str], question: Question, shown: Sent) -> Answer:
    request = [{"role": "system", "content": SYSTEM}, *shown, {"role": "user", "content": f"Question: {question.text}"}]
    body = {"model": model, "messages": request, "temperature": 0, "max_tokens": REPLY_TOKENS}
    for attempt in (1, 2):  # llama.cpp sometimes closes a connection that it said to keep
        try:
            answer = client.post("/chat/completions", json=body)
            break
        except httpx.RemoteProtocolError:
            if attempt == 2:
                raise
    answer.raise_for_status()
    found = answer.json()
    reply = found["choices"][0]["message"]["content"] or ""
    right, f1 = scored(reply, question.answer)
    text = " ".join(words("\n".join(m["content"] for m in shown)))
    has = all(" ".join(words(e)) in text for e in question.evidence)
    usage = found["usage"]
    return Answer(
        *key, question.answer, reply, right, f1, has, int(usage["prompt_tokens"]), int(usage["completion_tokens"])
    )


def scored(reply: str, expected: str) -> tuple[bool, float]:
    """Returns whether the reply contains one of the expected texts ("ten | 10") word for word, and the best F1 of its words."""
    given = words(reply)
    wanted = [found for text in expected.split("|") if (found := words(text))]
    right = any(f" {' '.join(each)} " in f" {' '.join(given)} " for each in wanted)
    shared = [2 * (Counter(given) & Counter(each)).total() / (len(given) + len(each)) for each in wanted]
    return right, max(shared, default=0.0)


def wilson(right: int, of: int) -> tuple[float, float]:
    """Returns the ends of the 95 % interval of a share."""
    p, n = right / of, of
    middle, half = p + Z * Z / (2 * n), Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return (middle - half) / (1 + Z * Z / n), (middle + half) / (1 + Z * Z / n)


def _sheet(answers: Sequence[Answer], model: str, sets: Sequence[str]) -> Sheet:
    groups: defaultdict[tuple[int, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.window, answer.way].append(answer)
    rows: list[tuple[Cell, ...]] = []
    for (window, way), given in groups.items():
        n, right = len(given), sum(a.right for a in given)
        low, high = wilson(right, n)
        there = [a for a in given if a.shown]
        sent, made = sum(a.prompt_tokens for a in given) / n, sum(a.completion_tokens for a in given) / n
        cost = sent + made * PRICES.output_per_mtok / PRICES.input_per_mtok
        figures = (f"{right / n:.2f} ({low:.2f} to {high:.2f})", sum(a.f1 for a in given) / n)
        rows.append(
            (
                f"{window:,}",
                way,
                n,
                *figures,
                f"{sum(a.right for a in there)} of {len(there)}",
                round(sent),
                round(cost),
            )
        )
    return Sheet(
        f"Answers by {model}, questions with an odd index of {', '.join(sets)}",
        (
            "window",
            "way",
            "questions",
            "right (95 %)",
            "F1",
            "right where the evidence was there",
            "prompt tokens",
            "cost",
        ),
        tuple(rows),
        "Right: the reply contains the expected answer; Wilson's interval. Cost of a question in plain input tokens, output at "
        "five.",
    )
