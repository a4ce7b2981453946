"""What an edit takes out of the view, as the index sees it: search finds it, and recall brings none of it back."""

from __future__ import annotations

from collections.abc import Collection

from ctxfold.history.records import Body, Cleared, MessageRemoved
from ctxfold.history.view import View
from ctxfold.ports import Document
from ctxfold.zones.recall import document

__all__ = ["taken_out"]


def taken_out(view: View, body: Body, *, again: Collection[str] = ()) -> tuple[Document, ...]:
    """Index entries for the messages that the edit `body` takes out of the view, without those that come `again` with it.

    Replies that gave way to another one are none; excerpts are in the index already, by their originals.
    """
    match body:
        case MessageRemoved(ids=ids, superseded=superseded) if not superseded:
            gone = [e for e in view.live if e.id in ids]
        case Cleared():
            gone = list(view.live)
        case _:
            return ()
    left = (e for e in gone if e.message.kind == "message" and not e.shown_seq and e.id not in again)
    return tuple(document(e.seq, e.message) for e in left)
