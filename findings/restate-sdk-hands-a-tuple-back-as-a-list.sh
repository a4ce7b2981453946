#!/bin/bash
# restate-sdk 1.3.0: a step of `ctx.run_typed` that returns `tuple[str, int]` is typed as a tuple for its caller, who gets a list. A
# `dict[int, str]` comes back with keys that are texts. The default serde knows the type hint and reads JSON without it:
#   ('reply-1', 2)  -> ['reply-1', 2]
#   {1: 'reply-1'}  -> {'1': 'reply-1'}
# A list of pydantic models, which it takes alone, is not written at all ("Object of type Reply is not JSON serializable"): the step
# has run by then, and Restate runs it again.
# Exits with 0 while the SDK does this, with another code once that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q 'restate-sdk==1.3.0' 'pydantic==2.14.4' 2>/dev/null
"$folder/venv/bin/python" - <<'PY'
from pydantic import BaseModel
from restate.serde import DefaultSerde


class Reply(BaseModel):
    id: str


def round_trip(value, hint):
    serde = DefaultSerde().with_maybe_type(hint)
    return serde.deserialize(serde.serialize(value))


pair, numbered = round_trip(("reply-1", 2), tuple[str, int]), round_trip({1: "reply-1"}, dict[int, str])
print("('reply-1', 2) ->", pair)
print("{1: 'reply-1'} ->", numbered)
assert pair == ["reply-1", 2], pair
assert numbered == {"1": "reply-1"}, numbered
assert round_trip(Reply(id="reply-1"), Reply) == Reply(id="reply-1")
try:
    round_trip([Reply(id="reply-1")], list[Reply])
except TypeError as error:
    print("[Reply(id='reply-1')] ->", error)
else:
    raise AssertionError("a list of models is written")
PY
