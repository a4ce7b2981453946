"""Is the evidence for a question in the window? A fixed budget, half for the newest messages, half for what recall finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ctxfold import AgentContext, ContextService, MemoryStore, Store, user
from ctxfold.compaction.strategy import CompactionInput, Decision, Skip
from ctxfold.effects import Flow
from ctxfold.effects import run as driven
from ctxfold.history.records import Draft, MessageAdded, SessionKey
from ctxfold.protocols import Ports
from ctxfold.retrieval.passages import Passage, chosen
from ctxfold.retrieval.search import search
from ctxfold.state import index_entry
from ctxfold.tokens.text import MessageCounter, text_counter
from tests.benchmarks import agent_logs, coding_logs, recall_quality
from tests.benchmarks.data import bfcl, plain
from tests.benchmarks.sheets import Cell, Sheet

__all__ = [
    "BUDGETS",
    "CJK",
    "Archive",
    "Ask",
    "Opened",
    "Shares",
    "archived",
    "cjk_found",
    "measured",
    "prepared",
    "prepared_by",
    "run",
    "settings",
    "through",
]

BUDGETS = (1_000, 2_000)
CJK = {  # said, question, what must be found
    "zh": (
        ("我的名字是王芳，住在杭州。", "请问我住在哪个城市？", "杭州"),
        ("李雷负责仓库的夜班，每周三休息。", "李雷哪天休息？", "每周三"),
        ("合同编号是HT-2087，金额三十二万元。", "合同的金额是多少？", "三十二万"),
        ("会议改到下周五下午两点，地点不变。", "会议改到什么时候？", "下周五"),
        ("韩梅对花生过敏，订餐时要注意。", "韩梅对什么过敏？", "花生"),
        ("服务器的备份每天凌晨三点运行。", "备份几点运行？", "凌晨三点"),
        ("客户要求包装换成蓝色的纸箱。", "包装要换成什么颜色？", "蓝色"),
        ("供应商赵敏的电话是 0571-8899。", "赵敏的电话号码？", "0571-8899"),
        ("项目代号是“青鸟”，预算由财务部批准。", "项目代号是什么？", "青鸟"),
        ("退货期限是收货后十五天。", "退货期限多长？", "十五天"),
    ),
    "ja": (
        ("私の名前は田中で、札幌に住んでいます。", "田中さんはどこに住んでいますか？", "札幌"),
        ("会議は木曜日の午後三時に変更されました。", "会議はいつに変更されましたか？", "木曜日"),
        ("倉庫の鍵は佐藤さんが持っています。", "倉庫の鍵は誰が持っていますか？", "佐藤"),
        ("予約番号はKX-552で、窓側の席です。", "予約番号を教えてください", "KX-552"),
        ("鈴木さんはエビのアレルギーがあります。", "鈴木さんのアレルギーは？", "エビ"),
        ("サーバーの再起動は毎週月曜日です。", "サーバーの再起動はいつ？", "月曜日"),
        ("新しい製品の色は緑に決まりました。", "製品の色は何に決まりましたか？", "緑"),
        ("請求書は山本さんに送ってください。", "請求書は誰に送りますか？", "山本"),
        ("駐車場は駅の北口にあります。", "駐車場はどこですか？", "北口"),
        ("旅行の予算は十万円までです。", "旅行の予算はいくら？", "十万円"),
    ),
}
CJK_BUDGET = 150
QUESTION_TOKENS = 200  # on top of the budget, so that it is for evidence alone


@dataclass(frozen=True, slots=True)
class Shares:
    """Of `questions`, how many had all their evidence in the window."""

    budget: int
    questions: int
    tail: int
    half_and_half: int


class Archive:
    """Messages of one person, all of them searchable; what is newest is also the tail."""

    def __init__(self, texts: Sequence[str], store: Store | None = None) -> None:
        self.messages = [user(text, id=f"m{n}") for n, text in enumerate(texts)]
        self.counter = MessageCounter(text_counter())
        self._ports = Ports(store or MemoryStore(), self.counter)
        self._key = SessionKey("bench", "archive")
        drafts = [Draft(m.id, MessageAdded(m)) for m in self.messages]
        documents = [index_entry(seq, m) for seq, m in enumerate(self.messages, 1)]
        self._ports.store.append(self._key, drafts, documents=documents)

    def tail(self, budget: int) -> int:
        """How many of the newest messages fit."""
        kept = 0
        for message in reversed(self.messages):
            budget -= self.counter.count(message)
            if budget < 0:
                break
            kept += 1
        return kept

    def window(self, question: str, *, tail_tokens: int, recall_tokens: int) -> str:
        """The newest messages and the passages that recall finds among the others."""
        first = len(self.messages) - self.tail(tail_tokens)
        newest = "\n".join(m.text for m in self.messages[first:])
        return "\n".join(
            [newest, *self.passages(question, recall_tokens, visible=range(first + 1, len(self.messages) + 1))]
        )

    def passages(self, question: str, budget: int, visible: Sequence[int] = ()) -> list[str]:
        def found() -> Flow[tuple[Passage, ...]]:
            matches = yield from search(self._key, question, budget_tokens=budget, visible=set(visible))
            return (yield from chosen(matches, budget, self.counter))

        return [p.text for p in driven(found(), self._ports)]


def measured(budgets: Sequence[int] = BUDGETS) -> list[Shares]:
    """The BFCL memory questions at each budget."""
    said, questions = bfcl()
    archives = {name: Archive(texts) for name, texts in said.items()}
    found: list[Shares] = []
    for budget in budgets:
        tail = both = 0
        for q in questions:
            archive = archives[q.scenario]
            alone = plain(archive.window(q.question, tail_tokens=budget, recall_tokens=0))
            shared = plain(archive.window(q.question, tail_tokens=budget // 2, recall_tokens=budget // 2))
            tail += all(p in alone for p in q.pieces)
            both += all(p in shared for p in q.pieces)
        found.append(Shares(budget, len(questions), tail, both))
    return found


@dataclass(frozen=True, slots=True)
class HalfTail:
    """The newest messages that fit half of the budget stay; the others go to the archive without a word."""

    budget: int
    name: str = "half_tail"

    def plan(self, case: CompactionInput) -> Decision:
        if case.facts.occasion == "after_turn":
            return Skip("only when a request has to fit")
        kept, room = 0, self.budget // 2
        for entry in reversed(case.view.live):
            room -= entry.tokens
            if room < 0:
                break
            kept += 1
        return case.drop(case.older_than(kept), "half for the tail")


Ask: TypeAlias = Callable[[str], str]
Opened: TypeAlias = Callable[[Sequence[str], int], AbstractContextManager[Ask]]


def through(opened: Opened, budgets: Sequence[int] = BUDGETS) -> list[Shares]:
    """The same questions; `opened` makes of a person's messages and a budget what answers each with all that is shown."""
    said, questions = bfcl()
    found: list[Shares] = []
    for budget in budgets:
        both = 0
        for name, texts in said.items():
            with opened(texts, budget) as ask:
                for q in (q for q in questions if q.scenario == name):
                    shown = plain(re.sub(r"(?m)^- #\d+ \w+: ", "", ask(q.question)))
                    both += all(p in shown for p in q.pieces)
        found.append(Shares(budget, len(questions), 0, both))
    return found


def prepared(budgets: Sequence[int] = BUDGETS) -> list[Shares]:
    """Asked through `prepare_context` of a session that holds the person's messages."""
    return through(_session, budgets)


@contextmanager
def _session(texts: Sequence[str], budget: int) -> Generator[Ask]:
    with AgentContext(**settings(budget)) as context:
        archived(context, texts)
        yield partial(prepared_by, context.service)


def prepared_by(service: ContextService, question: str) -> str:
    """All that `prepare_context` hands out for the question."""
    delta = service.prepare_context(question)
    assert delta.used_tokens <= delta.budget_tokens
    return "\n".join([*(m.text for m in delta.messages), delta.recalled])


def settings(budget: int) -> dict[str, Any]:
    """Of a session in whose window half of the budget is for the newest messages, half for recall; the question comes on top."""
    return {
        "context_window": budget + QUESTION_TOKENS + 1,
        "reply_reserve_tokens": 1,
        "strategy": HalfTail(budget),
        "recall_ratio": (budget // 2) / (budget + QUESTION_TOKENS),
        "auto_compact": False,
        "tool_result_ratio": 0.99,
    }


def archived(context: AgentContext, texts: Sequence[str]) -> None:
    """Put a person's messages in, and all but the newest into the archive."""
    context.add([user(text, id=f"m{n}") for n, text in enumerate(texts)])
    context.set_policy(auto_compact=True)
    context.service.compact_context()


def cjk_found(language: str, store: Store | None = None) -> tuple[int, list[list[str]]]:
    """How many questions found their answer, and every passage found, in order."""
    rows = CJK[language]
    noise = [text for other, said in CJK.items() if other != language for text, _, _ in said]
    archive = Archive([*(said for said, _, _ in rows), *noise], store)
    passages = [archive.passages(question, CJK_BUDGET) for _, question, _ in rows]
    return sum(any(want in p for p in got) for (_, _, want), got in zip(rows, passages, strict=True)), passages


def run(*, quick: bool = False) -> list[Sheet]:
    """One table for the public questions, one for Chinese and Japanese."""
    rows: list[tuple[Cell, ...]] = [
        (f"{s.budget:,}", s.questions, _share(s.tail, s.questions), _share(s.half_and_half, s.questions))
        for s in measured(BUDGETS[:1] if quick else BUDGETS)
    ]
    languages: list[tuple[Cell, ...]] = [
        (language, len(asked), _share(cjk_found(language)[0], len(asked))) for language, asked in CJK.items()
    ]
    return [
        Sheet(
            "Evidence in the window: BFCL memory, questions with all their evidence",
            ("budget, tokens", "questions", "newest messages only", "half newest, half recalled"),
            tuple(rows),
            "Target: 0.92 at 1,000 tokens, 0.96 at 2,000. Questions whose quoted source is not in the conversation are left out.",
        ),
        Sheet(
            f"Recall of Chinese and Japanese, {CJK_BUDGET} tokens",
            ("language", "questions", "answered"),
            tuple(languages),
            "Target: 0.9. The other language's sentences lie between.",
        ),
        recall_quality.table(quick=quick),
        recall_quality.by_meaning(quick=quick),
        recall_quality.curve(quick=quick),
        agent_logs.table(quick=quick),
        coding_logs.table(quick=quick),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}"
