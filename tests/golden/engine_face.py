"""`AgentContext`: asked whole and streamed, sync and async, with every kind of edit between the turns."""

from __future__ import annotations

import json
from typing import Any

from ctxfold import (
    AgentContext,
    Item,
    MediaPart,
    MemoryStore,
    Message,
    Query,
    ScriptedBackend,
    Section,
    TextPart,
    ToolSpec,
    tool_result,
    user,
)
from tests.golden.service import SUMMARY
from tests.golden.setting import Setting
from tests.golden.story import PICTURE, SYSTEM, TOOL_NAMES, Act, Turn
from tests.golden.trace import shown

ACTS = (
    "rewind", "compact", "fork", "goal", "inject", "insert", "note", "pin", "policy", "pop", "remove", "reopen",
    "restore", "retract", "search", "undo", "unpin", "update",
)  # fmt: skip
TOOLS = tuple(
    ToolSpec(
        name,
        f"{name.capitalize()} something.",
        {"type": "object", "properties": {"about": {"type": "string"}, "page": {"type": "integer"}}},
    )
    for name in TOOL_NAMES
)


def documents(query: Query) -> list[Item]:
    return [Item(f"Page on {word}: see shelf {len(word)}.", source=f"{word}.md") for word in query.text.split()[:4]]


class EngineSession:
    """One `AgentContext` and what is done with it."""

    def __init__(self, setting: Setting) -> None:
        self._set = setting
        self._store = MemoryStore()
        rng = setting.rng
        self._rules = setting.rules()
        if rng.random() < 0.3:
            self._rules["sections"] = [Section("documents", documents, lifetime=rng.choice(("epoch", "request")))]
        if rng.random() < 0.4:
            self._rules["summarizer"] = ScriptedBackend([lambda _: SUMMARY] * 200)
        self._name, self._forks = "golden", 0
        self._open()

    def _open(self) -> None:
        setting = self._set
        self._ctx = AgentContext(
            setting.backend(), session_id=self._name, store=self._store, system=SYSTEM, **setting.fixed(), **self._rules
        )
        setting.resources.callback(self._ctx.close)

    def run(self) -> None:
        for number, step in enumerate(self._set.steps(ACTS, scratch=True)):
            self._set.trace.step(f"{number} {step.name if isinstance(step, Act) else 'turn'}")
            if isinstance(step, Turn):
                self._set.attempt(lambda step=step: self._turn(step))  # type: ignore[misc]
            else:
                self._set.attempt(lambda step=step: self._act(step))  # type: ignore[misc]
            self._set.trace.see("window", shown(self._call("view").messages))

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._set.call(self._ctx, name, *args, **kwargs)

    def _turn(self, turn: Turn) -> None:
        self._set.service.replies.extend(turn.replies)
        options: dict[str, Any] = {"tools": TOOLS}
        if turn.scratch:
            options["scratch"] = turn.scratch
        content: Any = [self._question(turn)]
        for said in turn.replies:
            reply = self._ask(content, options)
            self._set.trace.see("reply", shown([reply.message]))
            if reply.message.tool_calls == ():
                break
            content = [tool_result(c.id, c.result, name=c.name) for c in said.calls]

    def _question(self, turn: Turn) -> Message:
        if not turn.picture:
            return user(turn.question)
        url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
        parts = (MediaPart("image", json.dumps(url), "image/png"), TextPart(turn.question))
        return Message(self._ctx.handle.new_id(), "user", parts)

    def _ask(self, content: Any, options: dict[str, Any]) -> Any:
        if not self._set.streams:
            return self._call("send", content, **options)
        events = self._set.read(self._ctx, "send_stream", content, **options)
        self._set.trace.see("events", [[type(e).__name__, getattr(e, "text", "")] for e in events[:-1]])
        return events[-1].reply

    def _act(self, act: Act) -> None:
        match act.name:
            case "insert" | "remove" | "restore" | "retract" | "rewind" | "update" | "pin" | "unpin":
                self._edit(act)
            case "note":
                visibility: Any = "model" if act.pick < 0.5 else "user"
                self._call("add", act.text, visibility=visibility)
            case "fork":
                self._forks += 1
                self._name = f"golden-{self._forks}"
                self._ctx = self._call("fork", self._name)
            case "reopen":
                self._ctx.close()
                self._open()
            case "search":
                hits = self._call("search", act.text)
                self._set.trace.see("hits", [[h.message_id, h.reference, h.excerpt] for h in hits])
            case "policy":
                self._call("set_policy", hard_ratio=round(0.7 + act.pick / 4, 2))
            case "goal":
                self._call("edit.set_goal", act.text)
            case "inject":
                self._ctx.service.inject("documents", [act.text])
            case "compact":
                self._call("compact", force=True)
            case "pop":
                self._call("edit.pop")
            case name:
                self._call(name)

    def _edit(self, act: Act) -> None:
        """Changes what was said: an earlier message, the newest ones, or all that follows one."""
        whole, live = self._call("messages"), self._call("view").messages
        match act.name:
            case "update":
                old = act.choose(live)
                self._call("edit.update", self._index(old), Message(old.id, old.role, (TextPart(act.text),)))
            case "insert":
                self._call("edit.insert", self._index(act.choose(live)), user(act.text))
            case "remove":
                self._call("edit.remove", act.choose(live).id)
            case "retract":
                for _ in range(1 + int(act.pick * 3)):
                    self._call("edit.pop")
            case "rewind":
                self._call("edit.set_messages", whole[: int(act.pick * len(whole))])
            case name:
                self._call(name, act.choose(whole).id)

    def _index(self, message: Message) -> int:
        """Where a message stands among the live ones."""
        live = [m for m in self._call("view").messages if m.kind == "message" and m.role != "system"]
        return next((n for n, m in enumerate(live) if m.id == message.id), len(live) - 1)


def run(setting: Setting) -> None:
    EngineSession(setting).run()
