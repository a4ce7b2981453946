"""Parts to test with: a model server on loopback that needs no network and no key."""

from ctxfold.testing.script import ErrorReply, RawReply, Reply, Script, Scripted, ScriptedCall
from ctxfold.testing.served import Strict
from ctxfold.testing.server import ModelServer, RecordedRequest
from ctxfold.testing.usage import PrefixStats, TextCounter

__all__ = [
    "ErrorReply",
    "ModelServer",
    "PrefixStats",
    "RawReply",
    "RecordedRequest",
    "Reply",
    "Script",
    "Scripted",
    "ScriptedCall",
    "Strict",
    "TextCounter",
]
