"""Large tool outputs with known facts: compiler, test run, traceback, JSON list, page, CSV, log and diff, from templates by seed.

Each output has a line that reports an error, with its place, a fact in the middle and one near the end. Among them stand lines that
only look like errors: warnings that name `error_count`, summaries of 0 errors, functions called on_error.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["KINDS", "REPORTED_SEEDS", "TUNING_SEEDS", "ToolText", "tool_text", "tool_texts"]

TUNING_SEEDS = (1, 2, 3, 101, 102, 103)
REPORTED_SEEDS = (201, 202, 203)
KINDS = ("compiler", "test run", "traceback", "JSON list", "page", "CSV", "log", "diff")
WORDS = (
    "lease", "quota", "shard", "ledger", "invoice", "parcel", "socket", "buffer", "cursor", "replica", "tenant", "voucher",
    "gateway", "digest", "epoch", "packet", "roster", "margin", "beacon", "kernel", "orchard", "harbor", "falcon", "willow",
    "copper", "lantern", "meadow", "signal", "anchor", "prism", "cobalt", "ember",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolText:
    """An output, what a user asks about it with the answer, and what an excerpt must hold of its error: the line and its place."""

    kind: str
    seed: int
    tool: str
    arguments: str
    text: str
    error: str
    place: str
    question: str
    answer: str
    middle: str
    end: str


class _Maker:
    """Random values of one seed, and lines to fill an output with."""

    def __init__(self, seed: int, kind: str) -> None:
        self.random = random.Random(f"{kind} {seed}")
        self.chars = self.random.choice((20_000, 45_000, 90_000, 140_000, 200_000))
        self.template = self.random.randrange(3)

    def word(self) -> str:
        return self.random.choice(WORDS)

    def name(self) -> str:
        return f"{self.word()}_{self.word()}"

    def number(self, low: int = 100, high: int = 9_999) -> int:
        return self.random.randint(low, high)

    def hex(self) -> str:
        return f"{self.random.getrandbits(40):010x}"

    def path(self, ending: str) -> str:
        return f"src/{self.word()}/{self.name()}{self.number(1, 99)}.{ending}"

    def filled(
        self, line: Callable[[int], str], special: dict[float, list[str]], begin: list[str], end: list[str]
    ) -> str:
        """Lines by number until the size is reached, with special ones at these shares of it."""
        lines, size, number = [*begin], sum(map(len, begin)), 0
        waiting = sorted(special.items())
        while size < self.chars:
            number += 1
            lines.append(line(number))
            size += len(lines[-1]) + 1
            if waiting and size >= waiting[0][0] * self.chars:
                lines += waiting.pop(0)[1]
        return "\n".join([*lines, *(x for _, each in waiting for x in each), *end])


def tool_text(kind: str, seed: int) -> ToolText:
    """Returns the output of this kind and seed; the same on every machine."""
    return _MAKERS[kind](_Maker(seed, kind), seed)


def tool_texts(seeds: tuple[int, ...] = REPORTED_SEEDS) -> list[ToolText]:
    return [tool_text(kind, seed) for kind in KINDS for seed in seeds]


def _asked(seed: int, middle: tuple[str, str], end: tuple[str, str]) -> tuple[str, str]:
    return middle if seed % 2 else end


def _compiler(make: _Maker, seed: int) -> ToolText:
    ending = ("c", "rs", "ts")[make.template]
    path, line, symbol = make.path(ending), make.number(10, 900), make.name()
    place = f"{path}:{line}:{make.number(2, 60)}"
    match make.template:
        case 0:
            error = f"{place}: error: '{symbol}' undeclared (first use in this function)"
            lines = [
                f"{path}: In function '{make.name()}':",
                error,
                f"  {line} |     {symbol} += 1;",
                "      |     ^~~~~~",
            ]
        case 1:
            error = f"error[E0425]: cannot find value `{symbol}` in this scope"
            lines = [
                error,
                f"  --> {place}",
                "   |",
                f"{line} |     {symbol} += 1;",
                "   |     ^^^^ not found in this scope",
            ]
        case _:
            place = f"{path}({line},7)"
            error = f"{place}: error TS2304: Cannot find name '{symbol}'."
            lines = [error]

    def filler(number: int) -> str:
        match make.random.randrange(6):
            case 0:
                return f"{make.path(ending)}:{number}:5: warning: unused variable 'error_count' [-Wunused-variable]"
            case 1:
                return f"{make.path(ending)}:{number}:9: note: candidate function on_error not viable"
            case _:
                return f"[{number}/9000] Building {make.path(ending)} with flags -O2 -fPIC, {make.number(1, 400)} ms"

    object_name, size, elapsed = make.name(), make.number(10_000, 99_999), make.number()
    middle = f"linked object {object_name}.o: section .text takes {size} bytes"
    end = f"build stopped after {elapsed} seconds, cache key {make.hex()}"
    text = make.filled(
        filler, {0.3: lines, 0.55: [middle], 0.97: [end]}, ["make: Entering directory '/srv/build'"], ["make: done"]
    )
    question, answer = _asked(
        seed,
        (f"How many bytes does the .text section of {object_name} take?", middle),
        ("After how many seconds did the build stop, and with which cache key?", end),
    )
    return ToolText(
        "compiler", seed, "shell", '{"command": "make all"}', text, error, place, question, answer, middle, end
    )


def _test_run(make: _Maker, seed: int) -> ToolText:
    test, path, line = f"test_{make.name()}", f"tests/test_{make.name()}.py", make.number(10, 900)
    got, wanted = make.number(), make.number()
    match make.template:
        case 0:
            error, place = f"E       AssertionError: {got} is not {wanted}", f"{path}:{line}: AssertionError"
            lines = [
                f"________ {test} ________",
                "",
                f"    def {test}() -> None:",
                f">       assert total() == {wanted}",
            ]
            lines += [error, "", place]
        case 1:
            path = path.replace(".py", ".test.ts")
            error, place = f"  ● {make.word()} suite › {test}", f"at Object.<anonymous> ({path}:{line}:21)"
            lines = [error, "", f"    Expected: {wanted}", f"    Received: {got}", "", f"      {place}"]
        case _:
            path = path.replace(".py", "_test.go").removeprefix("tests/")
            error, place = f"--- FAIL: Test{test.title()} (0.02s)", f"{path}:{line}"
            lines = [error, f"    {place}: got {got}, want {wanted}"]

    def filler(number: int) -> str:
        match make.random.randrange(5):
            case 0:
                return f"tests/test_{make.name()}.py::test_error_count_{number} PASSED, 0 errors"
            case 1:
                return f"tests/test_{make.name()}.py::test_on_failure_{number} PASSED"
            case _:
                return f"tests/test_{make.name()}.py::test_{make.name()}_{number} PASSED"

    slow, took, coverage = make.name(), make.number(10, 99), make.number(10, 99)
    middle = f"slowest durations: {took}.4s setup of fixture {slow}_database"
    end = f"coverage report: {coverage}.7% of statements, seed {make.number()}"
    text = make.filled(
        filler,
        {0.5: [middle], 0.75: lines, 0.98: [end]},
        ["collected 4120 items"],
        ["1 failed, 4119 passed in 61.07 s"],
    )
    question, answer = _asked(
        seed,
        (f"How long does the setup of the fixture {slow}_database take?", middle),
        ("What is the coverage of statements, and which seed was used?", end),
    )
    return ToolText(
        "test run", seed, "run_tests", '{"path": "tests"}', text, error, place, question, answer, middle, end
    )


def _traceback(make: _Maker, seed: int) -> ToolText:
    path, line = f"/srv/app/{make.name()}.py", make.number(10, 900)
    field, row = make.name(), make.number()
    match make.template:
        case 0:
            error, place = f"ValueError: field {field!r} is empty in row {row}", f'File "{path}", line {line}'
            lines = [
                "Traceback (most recent call last):",
                '  File "/srv/app/main.py", line 12, in <module>',
                "    main()",
            ]
            lines += [f"  {place}, in load_rows", "    return parse(row)", error]
        case 1:
            name = make.name().title().replace("_", "")
            error, place = (
                f"java.lang.IllegalStateException: field {field} is empty in row {row}",
                f"({name}.java:{line})",
            )
            lines = [f'Exception in thread "main" {error}', f"\tat com.example.{make.word()}.{name}.load{place}"]
            lines += [f"\tat com.example.Main.main(Main.java:{make.number(10, 99)})"]
        case _:
            path = path.replace(".py", ".js")
            error, place = f"TypeError: Cannot read properties of undefined (reading '{field}')", f"{path}:{line}:17"
            lines = [
                error,
                f"    at loadRows ({place})",
                "    at process.processTicksAndRejections (node:internal/process:95:5)",
            ]

    def filler(number: int) -> str:
        words = " ".join(make.word() for _ in range(make.random.randint(4, 9)))
        return f"worker {number % 16}: read {words}, errors=0, error_handler=default"

    table, rows, batch = make.name(), make.number(), make.hex()
    middle = f"worker 3: table {table} was loaded with {rows} rows"
    end = f"worker 0: checkpoint of batch {batch} written after {make.number()} ms"
    text = make.filled(filler, {0.4: lines, 0.6: [middle], 0.99: [end]}, ["loader 4.2 starts"], ["loader ends"])
    question, answer = _asked(
        seed, (f"With how many rows was {table} loaded?", middle), ("Which batch has the newest checkpoint?", end)
    )
    return ToolText(
        "traceback", seed, "run_job", '{"job": "loader"}', text, error, place, question, answer, middle, end
    )


def _json_list(make: _Maker, seed: int) -> ToolText:
    count, records = 0, list[dict[str, object]]()
    while count < make.chars:
        number = len(records)
        record: dict[str, object] = {
            "id": f"ord-{10_000 + number}",
            "customer": f"{make.word().title()} {make.word().title()}",
            "amount": make.number() / 100,
            "status": "shipped",
            "error": None,
            "error_count": 0,
            "lines": [{"sku": make.hex(), "pieces": make.number(1, 9)} for _ in range(make.random.randint(1, 3))],
        }
        records.append(record)
        count += len(json.dumps(record, indent=1 if make.template == 1 else None))
    failed, middle_one, last = records[len(records) // 3], records[len(records) // 2 + 3], records[-3]
    message = f"card of {make.name()} was refused, code {make.number()}"
    failed |= {"status": "failed", "error": message}
    middle_one["customer"] = f"{make.word().title()} van {make.word().title()}{make.number(10, 99)}"
    last["voucher"] = f"V-{make.hex()}"
    middle, end = f'"amount": {json.dumps(middle_one["amount"])}', f'"voucher": "{last["voucher"]}"'
    match make.template:
        case 0:
            text = json.dumps(records)
        case 1:
            text = json.dumps({"total": len(records), "next": None, "items": records}, indent=1)
        case _:
            text = "\n".join(json.dumps(r) for r in records)
    error, place = message, str(failed["id"])
    question, answer = _asked(
        seed,
        (f"What is the amount of the order of {middle_one['customer']}?", middle),
        (f"Which voucher was used for order {last['id']}?", end),
    )
    return ToolText(
        "JSON list", seed, "list_orders", '{"year": 2026}', text, error, place, question, answer, middle, end
    )


def _page(make: _Maker, seed: int) -> ToolText:
    product, price, warranty, row = make.name().replace("_", " "), make.number(), make.number(12, 99), make.number()
    error_words = f"Error: the import of row {row} failed, the tax number of {make.name()} is wrong"
    error, place = f"the import of row {row} failed", f"row {row}"
    middle, end = f"{price}.90", f"{warranty} months"

    def block(number: int) -> str:
        words = " ".join(make.word() for _ in range(make.random.randint(6, 16)))
        match make.template:
            case 0:
                cells = f"<td>{make.name()}</td><td>{make.number()}.50 EUR</td><td>{words}</td>"
                return f"<tr class='row'><td><a href='/item/{number}'>item {number}</a></td>{cells}</tr>"
            case 1:
                price = f"<span>{make.number()}.50 EUR</span>"
                return f"<div class='card' onclick='on_error()'><h3>Item {number}</h3><p>{words}.</p>{price}</div>"
            case _:
                return f"<li><a class='link' href='/p/{make.hex()}'>{words}</a> <em>no errors</em></li>"

    special = {
        0.25: [f"<div class='alert'>{error_words}</div>"],
        0.5: [f"<p>The price of the {product} is <b>{price}.90</b> EUR.</p>"],
        0.96: [f"<footer><p>All goods have a warranty of {warranty} months.</p></footer>"],
    }
    head = [
        "<!DOCTYPE html><html><head><title>Shop</title><style>p{color:red}</style>",
        "<script>function on_error(e){}</script>",
    ]
    text = make.filled(block, special, [*head, "</head><body><nav><a href='/'>Home</a></nav>"], ["</body></html>"])
    question, answer = _asked(
        seed, (f"What is the price of the {product}?", middle), ("How long is the warranty on all goods?", end)
    )
    return ToolText(
        "page", seed, "fetch", '{"url": "https://shop.example/list"}', text, error, place, question, answer, middle, end
    )


def _csv(make: _Maker, seed: int) -> ToolText:
    sign = (",", ";", "\t")[make.template]
    header = ["id", "station", "value", "state", "error_count", "comment"]

    def row(number: int) -> str:
        return sign.join([f"r{number}", make.name(), f"{make.number() / 10}", "ok", "0", make.word()])

    failed_id, station, value = f"x{make.number()}", f"{make.name()}{make.number(10, 99)}", f"{make.number() / 10}"
    last_id, comment = f"z{make.number()}", f"moved to {make.name()}"
    error = sign.join([failed_id, make.name(), "", "failed", "3", f"sensor timed out after {make.number()} ms"])
    middle = sign.join([f"m{make.number()}", station, value, "ok", "0", make.word()])
    end = sign.join([last_id, make.name(), f"{make.number() / 10}", "ok", "0", comment])
    text = make.filled(row, {0.35: [error], 0.6: [middle], 0.97: [end]}, [sign.join(header)], [])
    question, answer = _asked(
        seed, (f"Which value did station {station} have?", middle), (f"What is the comment on {last_id}?", end)
    )
    return ToolText(
        "CSV", seed, "query", '{"sql": "select * from stations"}', text, error, failed_id, question, answer, middle, end
    )


def _log(make: _Maker, seed: int) -> ToolText:
    hour = make.number(0, 23)

    def stamp(number: int) -> str:
        return f"2026-03-0{1 + number % 9}T{hour:02}:{number // 60 % 60:02}:{number % 60:02}Z"

    def filler(number: int) -> str:
        level = make.random.choice(("INFO ", "INFO ", "INFO ", "DEBUG", "WARN "))
        match make.template:
            case 0:
                return f"{stamp(number)} {level} {make.word()}.{make.word()} request {make.hex()} served, error_count=0"
            case 1:
                return f"{level.strip()} [{stamp(number)}] {make.word()}: retry queue is empty, no failures ({make.number()} ms)"
            case _:
                process = f"{make.word()}[{make.number()}]: <{level.strip().lower()}>"
                return f"{stamp(number)} {process} error handler idle, {make.name()}"

    module, order = f"{make.word()}.{make.word()}", make.number()
    place = stamp(make.number())
    error = f"{place} ERROR {module} payment of order {order} failed: ledger {make.name()} is locked"
    node, load = make.name(), make.number(10, 99)
    middle = f"{stamp(make.number())} INFO  cluster node {node} joined with load {load}%"
    end = f"{stamp(make.number())} INFO  shutdown requested by operator {make.name()}, ticket T-{make.number()}"
    text = make.filled(filler, {0.45: [error], 0.65: [middle], 0.99: [end]}, ["service starts"], ["service stopped"])
    question, answer = _asked(
        seed,
        (f"With which load did the node {node} join the cluster?", middle),
        ("Who requested the shutdown, and under which ticket?", end),
    )
    return ToolText(
        "log", seed, "read_log", '{"service": "payments"}', text, error, place, question, answer, middle, end
    )


def _diff(make: _Maker, seed: int) -> ToolText:
    setting, value, removed = f"{make.name()}_limit", make.number(), f"{make.name()}_flag"
    broken, line = make.path("py"), make.number(10, 900)
    error, place = f"error: patch failed: {broken}:{line}", f"{broken}:{line}"
    middle = f"+{setting} = {value}"
    end = f"-{removed} = '{make.hex()}'"
    lines, size = list[str](), 0
    waiting = [(0.3, [error, f"error: {broken}: patch does not apply"]), (0.55, [middle]), (0.97, [end])]
    while size < make.chars:
        path = make.path("py")
        block = [f"diff --git a/{path} b/{path}", "index 0c1f..9d2e 100644", f"--- a/{path}", f"+++ b/{path}"]
        for _ in range(make.random.randint(1, 4)):
            block.append(f"@@ -{make.number()},7 +{make.number()},9 @@ def {make.name()}() -> None:")
            block += [f"     {make.name()} = {make.name()}(error_count=0)" for _ in range(3)]
            block += [
                f"-    on_error({make.name()})",
                f"+    raise_error_later({make.name()})",
                f"+    {make.name()} = {make.number()}",
            ]
        if waiting and size >= waiting[0][0] * make.chars:
            special = waiting.pop(0)[1]
            block = [*special, *block] if special[0].startswith("error") else [*block, *special]
        lines += block
        size += sum(map(len, block)) + len(block)
    text = "\n".join([*lines, *(x for _, each in waiting for x in each)])
    question, answer = _asked(
        seed, (f"To what is {setting} set now?", middle), (f"Which value of {removed} was removed?", end)
    )
    return ToolText(
        "diff", seed, "shell", '{"command": "git apply --verbose"}', text, error, place, question, answer, middle, end
    )


_MAKERS: dict[str, Callable[[_Maker, int], ToolText]] = {
    "compiler": _compiler,
    "test run": _test_run,
    "traceback": _traceback,
    "JSON list": _json_list,
    "page": _page,
    "CSV": _csv,
    "log": _log,
    "diff": _diff,
}
