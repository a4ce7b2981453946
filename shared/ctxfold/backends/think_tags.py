"""Reasoning that a server leaves inside the text, between tags, told from content however the text is cut."""

from __future__ import annotations

__all__ = ["TagSplitter"]


class TagSplitter:
    """Text in, (reasoning, content) out. A suffix that may be the start of a tag is held back until it is decided."""

    def __init__(self, opening: str, closing: str, *, starts_open: bool = False) -> None:
        self._opening = opening
        self._closing = closing
        self._open = starts_open
        # a template that already opened the block may see the model repeat the tag
        self._may_repeat = starts_open
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """What this text adds to reasoning and to content."""
        text = self._held + text
        if self._may_repeat and self._repeated(text):
            text = text.lstrip().removeprefix(self._opening)
            self._may_repeat = False
        pieces: tuple[list[str], list[str]] = ([], [])
        at = 0
        while at < len(text):
            tag = self._closing if self._open else self._opening
            end = text.find(tag, at)
            before = text[at : end if end >= 0 else len(text)]
            if end < 0:
                keep = _overlap(before, self._opening if self._may_repeat else tag)
                keep = max(keep, _overlap(before, tag))
                pieces[not self._open].append(before[: len(before) - keep])
                self._held = before[len(before) - keep :]
                self._may_repeat = self._may_repeat and not before[: len(before) - keep].strip()
                return "".join(pieces[0]), "".join(pieces[1])
            pieces[not self._open].append(before)
            at = end + len(tag)
            self._open = not self._open
            self._may_repeat = False
        self._held = ""
        return "".join(pieces[0]), "".join(pieces[1])

    def close(self) -> tuple[str, str]:
        """The held-back suffix: no tag after all."""
        held, self._held = self._held, ""
        return (held, "") if self._open else ("", held)

    def _repeated(self, text: str) -> bool:
        return text.lstrip().startswith(self._opening)


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of the text begin the tag without completing it."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-size:]):
            return size
    return 0
