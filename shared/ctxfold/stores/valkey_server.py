"""A Valkey or Redis server, a cluster, or what sentinels name: runs commands, and tries again what passes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from ctxfold.errors import ConfigError, InvalidTextError, MissingExtraError, StoreUnavailableError
from ctxfold.history.records import SessionKey
from ctxfold.telemetry import record_retry

Command = tuple[Any, ...]  # its name, its key, and its arguments

SCHEMES = {"valkey": "redis", "redis": "redis", "valkeys": "rediss", "rediss": "rediss"}
# errors that go away: the server is elsewhere, or will be back
_PASSING = (
    "ConnectionError",
    "TimeoutError",
    "ClusterError",
    "MovedError",
    "AskError",
    "TryAgainError",
    "ClusterDownError",
    "ReadOnlyError",
)
PIECE = 1_000  # fields in one command
_FIRST_S = 3.0  # how long a server is waited for that has not answered yet: its address may be wrong
# runs commands where no head has moved and no id is there; an argument names a key by its place
_COMMIT = """
local at = 1
local function take() at = at + 1; return ARGV[at - 1] end
for _ = 1, tonumber(take()) do
  local key = KEYS[tonumber(take())]
  if (redis.call('GET', key) or '') ~= take() then return 0 end
end
for _ = 1, tonumber(take()) do
  local key = KEYS[tonumber(take())]
  if redis.call('HEXISTS', key, take()) == 1 then return 0 end
end
while at <= #ARGV do
  local command, key, args = take(), KEYS[tonumber(take())], {}
  for j = 1, tonumber(take()) do args[j] = take() end
  redis.call(command, key, unpack(args))
end
return 1
"""


@dataclass(slots=True)
class Batch:
    """Commands that run together, if these keys still have these values and these ids are not in the hash."""

    unchanged: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    absent: list[tuple[bytes, str]] = field(default_factory=list[tuple[bytes, str]])
    commands: list[Command] = field(default_factory=list[Command])

    def add(self, command: str, key: bytes, arguments: Sequence[object] = (), *, each: int = 1) -> None:
        """Adds a command; its arguments, which come in groups of `each`, are divided among several where they are many."""
        step = PIECE * each
        for at in range(0, len(arguments), step):
            self.commands.append((command, key, *arguments[at : at + step]))

    def script(self) -> Command:
        keys = dict.fromkeys([*self.unchanged, *(k for k, _ in self.absent), *(c[1] for c in self.commands)])
        place = {key: at for at, key in enumerate(keys, 1)}
        values: list[object] = [len(self.unchanged)]
        for key, value in self.unchanged.items():
            values += [place[key], value]
        values.append(len(self.absent))
        for key, name in self.absent:
            values += [place[key], name]
        for command, key, *arguments in self.commands:
            values += [command, place[key], len(arguments), *arguments]
        return ("EVAL", _COMMIT, len(keys), *keys, *values)


class ValkeyServer:
    """Connects to a server by its URL, as `ValkeyStore` describes it."""

    def __init__(self, url: str, *, wait: int, timeout_s: float) -> None:
        try:
            import redis.exceptions
        except ImportError as error:
            raise MissingExtraError('Valkey and Redis need redis: pip install "ctxfold[redis]"') from error
        self._timeout_s = timeout_s
        errors: Any = redis.exceptions
        try:
            self._client, self._cluster, self._wait = _connected(url, wait, timeout_s)
        except (TypeError, ValueError):  # their text may hold a part of the password
            raise ConfigError("use valkey://host:6379/0, with ?cluster=true, ?sentinel=NAME or ?wait=1") from None
        except errors.RedisClusterException as error:
            raise StoreUnavailableError(f"{error} Check the address, or try again.") from error
        self.name = urlsplit(url).netloc.rpartition("@")[2] + urlsplit(url).path
        self._passing: tuple[type[Exception], ...] = tuple(getattr(errors, name) for name in _PASSING)
        self._refused: tuple[type[Exception], ...] = (redis.RedisError, errors.RedisClusterException)
        self._lock = threading.Lock()
        self._closed = self._answered = False

    def close(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        for node in self._client.get_nodes() if self._cluster else ():
            if node.redis_connection is not None:
                node.redis_connection.connection_pool.disconnect()  # closing a cluster's client leaves these open
        self._client.close()

    def run(self, owner: str, commands: Sequence[Command], *, writes: bool = False) -> list[Any]:
        """Runs commands for keys of one owner in one round trip; what writes may run twice, where an answer was lost."""
        deadline_s = time.monotonic() + (self._timeout_s if self._answered else min(self._timeout_s, _FIRST_S))
        for attempt in range(10_000):
            if self._closed:
                raise StoreUnavailableError(f"the store on {self.name} is closed: open a new one")
            try:
                pipe: Any = self._node(owner).pipeline(transaction=False)
                for command in commands:
                    pipe.execute_command(*command)
                if writes and self._wait:
                    pipe.execute_command("WAIT", self._wait, int(self._timeout_s * 500))
                results: list[Any] = pipe.execute()
            except self._passing as error:
                if time.monotonic() > deadline_s:
                    raise StoreUnavailableError(f"cannot use {self.name} ({error}): check it, or retry") from error
                record_retry("valkey")
                time.sleep(random.uniform(0.002, 0.01 * 2 ** min(attempt, 5)))
                self._look_again()
            except self._refused as error:
                raise StoreUnavailableError(f"{self.name} refused a command ({error}): try again") from error
            except UnicodeEncodeError:
                raise InvalidTextError("an id or term holds a lone surrogate: decode the text properly") from None
            else:
                if writes and self._wait and (had := results.pop()) < self._wait:
                    raise StoreUnavailableError(
                        f"{had} of {self._wait} replicas of {self.name} have a write: try the same again"
                    )
                self._answered = True
                return results
        raise AssertionError("unreachable")

    def owners(self) -> tuple[str, ...]:
        """Returns the owners that have sessions, sorted: looks at every key of every node."""
        try:
            names = list(self._client.scan_iter(match=owner_key("", "sessions").replace(b"{}", b"{*}"), count=PIECE))
        except (*self._passing, *self._refused) as error:
            raise StoreUnavailableError(f"cannot use {self.name} ({error}): check it, or retry") from error
        return tuple(sorted(unquote(name.partition(b"{")[2].partition(b"}")[0].decode()) for name in names))

    def _node(self, owner: str) -> Any:
        if not self._cluster:
            return self._client
        node = self._client.get_node_from_key(_tag(owner))
        return self._client.get_redis_connection(node)

    def _look_again(self) -> None:
        """Has a cluster say again who has which keys."""
        if self._cluster:
            with suppress(*self._refused):  # the next try says what is wrong
                self._client.nodes_manager.initialize()

    def commit(self, owner: str, batch: Batch) -> bool:
        return self.run(owner, [batch.script()], writes=True) == [1]

    def tries(self, what: str) -> Iterator[int]:
        """Yields until the caller has written; others may write at the same moment."""
        deadline_s = time.monotonic() + self._timeout_s
        for attempt in range(10_000):
            yield attempt
            if time.monotonic() > deadline_s:
                break
            time.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 6)))
        raise StoreUnavailableError(f"{what} was busy for {self._timeout_s:g} s with other workers: raise timeout_s")


def _connected(url: str, wait: int, timeout_s: float) -> tuple[Any, bool, int]:
    """Returns a client, whether it is of a cluster, and how many replicas are waited for."""
    import redis

    untyped: Any = redis
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    cluster, service = options.pop("cluster", "false") == "true", options.pop("sentinel", "")
    replicas, database = options.pop("wait", str(wait)), parts.path.strip("/") or "0"
    login, at, hosts = parts.netloc.rpartition("@")
    is_known = parts.scheme in SCHEMES and (replicas + database).isdecimal()
    if not is_known or (cluster and (service or database != "0")):
        raise ValueError("options that contradict each other")
    host = "sentinels" if service else hosts
    plain = urlunsplit((SCHEMES[parts.scheme], login + at + host, database, urlencode(options), ""))
    # a server that hangs leaves time for another, and more than replicas are waited for
    limits: dict[str, Any] = {"socket_timeout": timeout_s * 0.6, "socket_connect_timeout": min(timeout_s, 5.0)}
    if service:
        settings = {**limits, **untyped.connection.parse_url(plain)}
        settings["ssl"] = settings.pop("connection_class", None) is not None
        shared = {name: settings[name] for name in settings if name.startswith(("ssl", "socket_"))}
        places = [each.rpartition(":") for each in hosts.split(",")]
        sentinels = untyped.Sentinel([(name, int(port)) for name, _, port in places], sentinel_kwargs=shared)
        client = sentinels.master_for(service, **settings)
    elif cluster:
        client = untyped.RedisCluster.from_url(plain, **limits)
    else:
        client = untyped.Redis.from_url(plain, **limits)
    if not cluster:
        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)  # refuses unknown options
    return client, cluster, int(replicas)


# names of keys: the parts are quoted, so that ":" and "/" part them


def _tag(owner: str) -> bytes:
    return f"ctxfold:{{{quote(owner, safe='')}}}:".encode()


def owner_key(owner: str, kind: str) -> bytes:
    return _tag(owner) + f"/{kind}".encode()


def session_key(key: SessionKey, kind: str) -> bytes:
    return _tag(key[0]) + f"{quote(key[1], safe='')}:{kind}".encode()


def lease_name(key: SessionKey, name: str) -> str:
    return f"{quote(key[1], safe='')}:{name}"


def vectors_key(key: SessionKey, embedder: str) -> bytes:
    return session_key(key, f"vectors:{quote(embedder, safe='')}")
