"""Implements `ctxfold completion`: a shell's completion script, made from the commands and options that the parser knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

HELP_CHARS = 70


@dataclass(frozen=True, slots=True)
class Choice:
    """A word that may follow: a command or an option, whether it takes a value, and its description."""

    word: str
    about: str
    takes_value: bool = False


Grammar = Mapping[tuple[str, ...], tuple[Choice, ...]]  # what may follow each command, by its path


def completion(
    context: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish")],
) -> None:
    """Print a completion script for the shell's start file: eval "$(ctxfold completion bash)"."""
    write = SHELLS.get(shell)
    if write is None:
        raise typer.BadParameter(f"use {', '.join(SHELLS)}", param_hint="SHELL")
    root = context.find_root().command
    typer.echo("\n".join(write(dict(_grammar(root, ())))))


def _grammar(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[Choice, ...]]]:
    commands: Mapping[str, Any] = getattr(command, "commands", {})
    options = [
        Choice(option, _short(parameter.help), not (parameter.is_flag or parameter.count))
        for parameter in command.params
        if parameter.param_type_name == "option"
        for option in (*parameter.opts, *parameter.secondary_opts)
    ]
    named = [Choice(name, _short(sub.help)) for name, sub in commands.items()]
    yield path, (*named, *options, Choice("--help", "show the options"))
    for name, sub in commands.items():
        yield from _grammar(sub, (*path, name))


def _short(text: str | None) -> str:
    """Returns the beginning of a help text without characters that mean something to a shell."""
    first = next(iter((text or "").splitlines()), "").replace("'", "\u2019")
    plain = "".join(c for c in first if c not in '"\\`$')
    return plain if len(plain) <= HELP_CHARS else f"{plain[: HELP_CHARS - 3]}..."


def _paths(grammar: Grammar) -> str:
    return "|".join(f"/{'/'.join(path)}" for path in grammar if path)


def _values(grammar: Grammar) -> str:
    return "|".join(sorted({c.word for choices in grammar.values() for c in choices if c.takes_value}))


def _bash(grammar: Grammar) -> Iterator[str]:
    yield "_ctxfold() {"
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" at="" word found=""'
    yield '  case "${COMP_WORDS[COMP_CWORD-1]}" in'
    yield f'    {_values(grammar)}) COMPREPLY=($(compgen -f -- "$current")); return;;'
    yield "  esac"
    yield '  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield f'    case "$at/$word" in {_paths(grammar)}) at="$at/$word";; esac'
    yield "  done"
    yield '  case "$at" in'
    for path, choices in grammar.items():
        yield f"    '{''.join(f'/{name}' for name in path)}') found='{' '.join(c.word for c in choices)}';;"
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$found" -- "$current"))'
    yield '  if [ ${#COMPREPLY[@]} -eq 0 ]; then COMPREPLY=($(compgen -f -- "$current")); fi'
    yield "}"
    yield "complete -o filenames -F _ctxfold ctxfold"


def _zsh(grammar: Grammar) -> Iterator[str]:
    yield "#compdef ctxfold"
    yield "_ctxfold() {"
    yield '  local at="" word'
    yield "  local -a found"
    yield '  case "$words[CURRENT-1]" in'
    yield f"    {_values(grammar)}) _files; return;;"
    yield "  esac"
    yield "  for word in $words[2,CURRENT-1]; do"
    yield f'    case "$at/$word" in {_paths(grammar)}) at="$at/$word";; esac'
    yield "  done"
    yield '  case "$at" in'
    for path, choices in grammar.items():
        described = " ".join(f"'{c.word}:{c.about.replace(':', chr(92) + ':')}'" for c in choices)
        yield f"    '{''.join(f'/{name}' for name in path)}') found=({described});;"
    yield "  esac"
    yield "  _describe 'ctxfold' found || _files"
    yield "}"
    yield "compdef _ctxfold ctxfold"


def _fish(grammar: Grammar) -> Iterator[str]:
    for path, choices in grammar.items():
        subs = [c.word for c in choices if not c.word.startswith("-")]
        seen = [f"__fish_seen_subcommand_from {name}" for name in path]
        if not path:
            here = "__fish_use_subcommand"
        elif subs:
            here = "; and ".join([*seen, f"not __fish_seen_subcommand_from {' '.join(subs)}"])
        else:
            here = "; and ".join(seen)
        for choice in choices:
            dashes = len(choice.word) - len(choice.word.lstrip("-"))
            kind = {0: "-f -a", 1: "-s", 2: "-l"}[dashes]
            value = " -r" if choice.takes_value else ""
            yield f"complete -c ctxfold -n '{here}' {kind} {choice.word[dashes:]}{value} -d '{choice.about}'"


SHELLS: Mapping[str, Callable[[Grammar], Iterator[str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
