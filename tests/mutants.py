"""Breaks the engine on purpose, one place at a time, and reports which of the breaks its tests do not notice.

`python -m tests.mutants [NAME ...] [--workers 2]` copies the source tree once for each worker. For each mutant it applies the
change to a copy, runs the tests that have to notice it, and takes the change back. The exit code is 1 when fewer than 95 % of the
mutants are killed, or when one cannot be tried.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, TypeAlias

__all__ = ["MUTANTS", "ROOT", "Mutant", "mutated", "problems"]

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = (".*", "__pycache__", "build", "dist", "site")  # of the tree that is copied
SHARE = 0.95  # of the mutants that have to be killed
TIMEOUT_S = 300.0  # a mutant that hangs counts as killed
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin")
Result: TypeAlias = Literal["killed", "survived", "not tried"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of `file` (below shared/ctxfold): `old`, which occurs once, becomes `new`.

    `tests` are node ids (below tests/) of which at least one has to fail then.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _of(file: str, *mutants: tuple[str, str, str, str]) -> tuple[Mutant, ...]:
    """Returns the mutants of one file from (name, old text, new text, node ids separated by spaces)."""
    return tuple(Mutant(name, file, old, new, tuple(tests.split())) for name, old, new, tests in mutants)


MUTANTS: tuple[Mutant, ...] = (
    *_of(
        "compaction/live_prefix.py",
        (
            "a_summary_on_the_live_prefix_repeats_empty_messages",
            "prefix = [e for e in entries[:upto] if says_something(e.message)]",
            "prefix = entries[:upto]",
            "wire/test_legal_windows.py::test_l7_empty_messages_are_left_out_of_summaries_on_the_live_prefix",
        ),
    ),
    *_of(
        "backends/jsonl.py",
        (
            "a_line_is_read_without_its_text",
            "if told and not named and text.strip()",
            "if told and named and text.strip()",
            "wire/test_native_jsonl.py::test_p4_no_line_is_accepted_whose_text_would_be_lost",
        ),
        (
            "a_spoken_answer_is_read_as_nothing",
            'named = key in _NAME_KEYS and not place.startswith("audio.")',
            "named = key in _NAME_KEYS",
            "wire/test_native_jsonl.py::test_p4_no_line_is_accepted_whose_text_would_be_lost",
        ),
    ),
    *_of(
        "cli/mcp.py",
        (
            "an_answer_of_mcp_arrives_twice",
            "structured_output=False",
            "structured_output=None",
            "cli/test_mcp.py::test_p3_an_answer_arrives_once",
        ),
    ),
    *_of(
        "telemetry.py",
        (
            "the_provider_of_a_langchain_model_has_another_name",
            '"google_genai": "gcp.gemini"',
            '"google_genai": "google"',
            "engine/test_tracing.py::test_p2_spans_name_the_provider_of_a_langchain_model",
        ),
    ),
    *_of(
        "compaction/extract.py",
        (
            "a_sentence_of_a_user_with_a_roles_name_speaks_for_it",
            "return folded in _ROLES or folded.split(maxsplit=1)[0] in _ROLES",
            "return False",
            "compaction/test_extract.py::test_nobody_speaks_for_the_assistant",
        ),
        (
            "a_time_in_a_sentence_is_a_stamp",
            '(not after.strip() or (bracketed and after.startswith(":")))',
            '(not after.strip() or after.startswith(":"))',
            "compaction/test_extract.py::test_a_time_or_a_colon_in_a_sentence_is_no_stamp",
        ),
        (
            "a_stamp_without_brackets_is_none",
            "if (label := _LABEL.match(rest)) and _is_name(label[1] or label[2]):",
            'if (label := _LABEL.match(rest)) and stamp[0][0] in "[(":',
            "compaction/test_extract.py::test_a_stamp_and_a_speaker_are_known_by_their_shape",
        ),
        (
            "a_name_in_a_header_is_no_speaker",
            "if bracketed and _is_name(rest.strip())",
            "if False and _is_name(rest.strip())",
            "compaction/test_extract.py::test_a_stamp_and_a_speaker_are_known_by_their_shape",
        ),
        (
            "numbers_count_nothing",
            "NUMBER_WORTH * math.sqrt(len(sentence.values))",
            "0.0",
            "compaction/test_extract.py::test_a_number_is_worth_more_than_a_rare_word",
        ),
        (
            "a_question_counts_in_full",
            "worth * (ASKED if _asks(text) else 1.0)",
            "worth",
            "compaction/test_extract.py::test_a_question_counts_less_than_what_is_said",
        ),
        (
            "an_answer_stands_alone",
            "if answers and len(words_of(text)) <= SHORT_ANSWER:",
            "if False:",
            "compaction/test_extract.py::test_a_bare_answer_comes_with_its_question",
        ),
        (
            "an_item_stands_without_its_heading",
            'parts = [f"{heading} {line}"]',
            "parts = [line]",
            "compaction/test_extract.py::test_an_item_comes_with_the_heading_of_its_list",
        ),
        (
            "each_line_of_a_large_output_counts_in_full",
            "return FEW_LINES / max(FEW_LINES, lines)",
            "return 1.0",
            "compaction/test_extract.py::test_a_large_output_does_not_drown_what_is_said_of_it",
        ),
        (
            "an_old_line_counts_as_a_new_one",
            "KEPT = 0.9",
            "KEPT = 1.1",
            "compaction/test_extract.py::test_of_two_lines_that_tell_as_much_the_newer_one_stays",
        ),
        (
            "what_is_said_again_counts_in_full",
            "REPEATED = 0.3",
            "REPEATED = 1.0",
            "compaction/test_extract.py::test_what_is_said_again_with_another_number_counts_less",
        ),
        (
            "code_in_a_message_is_read",
            'if is_code_block("\\n".join(block)) else block',
            "if False else block",
            "compaction/test_extract.py::test_code_is_left_out_and_its_failures_stay",
        ),
        (
            "thousands_keep_their_comma",
            'digits = digits.replace(",", "")\n',
            "pass\n",
            "compaction/test_extract.py::test_equal_values_have_one_normal_form",
        ),
        (
            "signs_of_numbers_are_no_digits",
            "elif value < 10_000:",
            "elif value < 100:",
            "compaction/test_extract.py::test_equal_values_have_one_normal_form",
        ),
        (
            "an_open_call_comes_last",
            "math.inf, open_call=True",
            "0.0, open_call=True",
            "compaction/test_verify.py::test_an_open_call_comes_first_and_says_so",
        ),
    ),
    *_of(
        "compaction/verify.py",
        (
            "a_short_number_counts_anywhere",
            "any(len(value) > SHORT_VALUE or not sentence.words or sentence.words & s.words for s in by_value.get(value, ()))",
            "bool(by_value.get(value))",
            "compaction/test_verify.py::test_a_short_number_counts_only_beside_its_words",
        ),
        (
            "part_of_a_number_is_the_number",
            "return number <= SMALL_NUMBER or digits",
            "return True or digits",
            "compaction/test_verify.py::test_part_of_a_longer_value_is_no_value",
        ),
        (
            "counting_is_inventing",
            "SMALL_NUMBER = 12",
            "SMALL_NUMBER = 0",
            "compaction/test_verify.py::test_numbering_and_small_counts_are_not_invented",
        ),
        (
            "a_time_of_day_has_one_form",
            "or (clock and str(number - 12) in groups)",
            "",
            "compaction/test_verify.py::test_a_value_in_another_form_is_not_invented",
        ),
        (
            "what_a_model_rounds_stays",
            "if exact is not None:",
            "if exact is not None and false:",
            "compaction/test_verify.py::test_a_value_that_a_model_rounds_gives_way_to_the_source",
        ),
        (
            "what_is_invented_stays",
            "            elif false:\n",
            "            elif False:\n",
            "compaction/test_verify.py::test_a_value_of_nowhere_is_struck_out_with_its_sentence",
        ),
        (
            "an_exact_sentence_gives_way",
            "    if any(s.values & stated.values for s in best):\n        return None\n",
            "",
            "compaction/test_verify.py::test_what_a_model_says_exactly_stays_in_its_words",
        ),
        (
            "a_summary_may_be_invented",
            "if len(struck) < 2 or",
            "if True or",
            "compaction/test_verify.py::test_rewritten_numbers_are_invented_and_reject_the_summary",
        ),
        (
            "a_summary_may_be_longer_than_its_source",
            "if len(text) > len(source_text):",
            "if False:",
            "compaction/test_verify.py::test_a_summary_that_is_none_is_named",
        ),
        (
            "a_script_of_turns_is_a_summary",
            "(turns > 1 and turns",
            "(False and turns",
            "compaction/test_verify.py::test_a_summary_that_is_none_is_named",
        ),
        (
            "lines_go_beyond_the_limit",
            "        if used + cost > limit_tokens:\n            continue\n",
            "",
            "compaction/test_verify.py::test_what_is_missing_is_put_back_within_the_limit",
        ),
        (
            "the_same_is_said_twice",
            "NEW_WORDS = 0.5",
            "NEW_WORDS = 0.0",
            "compaction/test_verify.py::test_of_two_lines_that_say_the_same_one_is_put_back",
        ),
    ),
    *_of(
        "compaction/summarize.py",
        (
            "an_extract_takes_all_of_its_room",
            "if task.rules.recall_share_tokens:",
            "if False:",
            "compaction/test_extract.py::test_with_recall_an_extract_takes_a_third_of_the_room_that_it_has_without",
        ),
    ),
    *_of(
        "backends/anthropic/request.py",
        (
            "a_schema_of_the_answer_replaces_the_effort",
            'config = {**as_dict(body.get("output_config")), **as_dict(',
            "config = {**as_dict(",
            "langchain/test_wire_agents.py::test_an_agent_that_answers_in_a_schema",
        ),
    ),
    *_of(
        "engine/request.py",
        (
            "the_limit_of_a_reply_has_one_name",
            '("max_tokens", "max_output_tokens", "max_completion_tokens", "max_new_tokens")',
            '("max_tokens",)',
            "llamaindex/test_settings.py::test_the_limit_of_a_reply_has_several_names",
        ),
        (
            "no_limit_of_a_models_own_is_a_mistake",
            "if isinstance(value, int) and value > 0), None)",
            "if isinstance(value, int)), None)",
            "langchain/test_model_limits.py::test_a_limit_that_means_none_to_the_service_is_its_own",
        ),
    ),
    *_of(
        "session/context.py",
        (
            "a_text_is_asked_like_a_turn",
            "if not is_a(turn_input, TurnInput):",
            "if False:",
            "engine/test_mistakes.py::test_calls",
        ),
    ),
    *_of(
        "adapters/history_tools.py",
        (
            "a_model_may_leave_out_arguments",
            "given = own.bind(*args, **kwargs).arguments",
            "given = own.bind_partial(*args, **kwargs).arguments",
            "engine/test_toolkit.py::test_a_model_is_told_what_is_wrong_with_its_arguments",
        ),
        (
            "null_is_no_argument",
            'return "default" in rules',
            "return False",
            "engine/test_toolkit.py::test_a_whole_number_with_a_fraction_of_zero_and_null_are_arguments",
        ),
        (
            "a_whole_number_has_no_point",
            "plain = int(value) if isinstance(value, float) and value.is_integer() else value",
            "plain = value",
            "engine/test_toolkit.py::test_a_whole_number_with_a_fraction_of_zero_and_null_are_arguments",
        ),
        (
            "a_model_may_give_arguments_of_any_type",
            "return None if wrong is None else f",
            "return None if True else f",
            "engine/test_toolkit.py::test_a_model_is_told_what_is_wrong_with_its_arguments",
        ),
    ),
    *_of(
        "compaction/excerpts.py",
        (
            "a_failure_without_a_file_comes_first",
            "key=lambda line: _PATH.search(line) is None",
            "key=lambda line: 0",
            "compaction/test_extracted_code.py::test_a_failure_that_names_its_file_comes_first",
        ),
        (
            "code_that_raises_an_error_reports_it",
            "    units = (u for u in units if not _RAISES.match(u))\n",
            "",
            "compaction/test_extracted_code.py::test_code_that_raises_an_error_reports_none",
        ),
        (
            "code_that_handles_errors_reports_them",
            "if not code or _EXCEPTION.match(u)",
            "if True or _EXCEPTION.match(u)",
            "compaction/test_extracted_code.py::test_code_states_no_facts",
        ),
        (
            "names_that_begin_like_an_error_are_errors",
            'if line[end - 1] != ":" and not _ENDING.match(line.lower(), end):',
            "if False:",
            "compaction/test_excerpts.py::test_a_name_that_begins_like_an_error_is_none",
        ),
        (
            "an_exception_loses_its_frame",
            "if _FRAME.match(source.unit(i)):",
            "if False:",
            "compaction/test_excerpts.py::test_a_failure_is_shown_with_its_place",
        ),
        (
            "the_question_is_not_looked_for",
            "for text, weight in ((focus.question, 1.0), (focus.call, 0.7)):",
            "for text, weight in ((focus.call, 0.7),):",
            "compaction/test_excerpts.py::test_what_the_question_and_the_call_name_is_kept",
        ),
    ),
    *_of(
        "compaction/text_units.py",
        (
            "names_with_their_values_are_code",
            "if lines and all(map(_SETTING.fullmatch, lines)):",
            "if False:",
            "compaction/test_extracted_code.py::test_names_with_their_values_between_fences_are_read",
        ),
        (
            "a_constant_makes_a_block_a_configuration",
            "if lines and all(map(_SETTING.fullmatch, lines)):",
            "if lines and any(map(_SETTING.fullmatch, lines)):",
            "compaction/test_extracted_code.py::test_constants_beside_code_are_code",
        ),
        (
            "what_an_excerpt_says_of_itself_is_no_code",
            "without_markers(text[:CODE_CHARS]).splitlines()",
            "text[:CODE_CHARS].splitlines()",
            "compaction/test_extracted_code.py::test_the_excerpt_of_a_listing_is_code",
        ),
        (
            "json_between_fences_is_code",
            "if json_object(text) is not None:",
            "if False:",
            "compaction/test_extracted_code.py::test_a_configuration_between_fences_is_read",
        ),
        (
            "what_an_excerpt_says_of_itself_is_a_fact",
            """return _ANY_MARKER.sub("", text) if "[..." in text else text""",
            "return text",
            "compaction/test_extracted_code.py::test_what_an_excerpt_says_of_itself_is_no_fact",
        ),
        (
            "every_line_in_brackets_with_dots_is_a_marker",
            r"""(?: line \d+| [\d,]+ of [\d,]+ (?:characters|items) left out\b.*)?\]$", re.M""",
            r"""(?: .*)?\]$", re.M""",
            "compaction/test_extracted_code.py::test_a_line_that_somebody_writes_like_a_marker_is_read",
        ),
        (
            "notes_without_a_reference_are_text",
            "if not reference or m[2] == reference",
            "if m[2] == reference",
            "compaction/test_excerpts.py::test_a_shorter_excerpt_counts_what_the_output_has",
        ),
        (
            "pages_have_lines",
            'if "; the text of a page" in note[0]:',
            "if False:",
            "compaction/test_excerpts.py::test_a_shorter_excerpt_counts_what_the_output_has",
        ),
    ),
    *_of(
        "compaction/tool_summaries.py",
        (
            "summaries_of_outputs_always_have_references",
            'pair.result.reference if rules.references else ""',
            "pair.result.reference",
            "compaction/test_pairs.py::test_the_whole_output_is_named_where_references_are",
        ),
    ),
    *_of(
        "compaction/tool_outputs.py",
        (
            "outputs_that_arrive_always_have_references",
            'OWN_REFERENCE if rules.references else ""',
            "OWN_REFERENCE",
            "compaction/test_excerpts.py::test_a_session_without_references_names_no_message",
        ),
        (
            "outputs_that_give_way_always_have_references",
            'entry.reference if clearing.rules.references else ""',
            "entry.reference",
            "compaction/test_excerpts.py::test_outputs_shrink_step_by_step_at_epochs",
        ),
        (
            "arguments_always_have_references",
            'entry.reference if rules.references else ""',
            "entry.reference",
            "compaction/test_excerpts.py::test_a_session_without_references_names_no_message",
        ),
        (
            "what_fits_is_not_whole",
            "if tokens <= min(share, in_round, most):",
            "if tokens <= 0:",
            "compaction/test_excerpts.py::test_what_fits_is_shown_whole",
        ),
        (
            "superseded_outputs_stay",
            "indices = [i for i in outputs if i < old or entries[i].id in first]",
            "indices = [i for i in outputs if i < old]",
            "compaction/test_excerpts.py::test_an_output_that_was_asked_for_again_gives_way_among_the_newest",
        ),
        (
            "copies_of_arguments_stay_beside",
            "parts.append(_without_copies(part, copies) if isinstance(part, Opaque) else shortened.get(index, part))",
            "parts.append(shortened.get(index, part))",
            "compaction/test_arguments.py::test_what_a_framework_keeps_beside_is_shortened_too",
        ),
    ),
    *_of(
        "compaction/steps.py",
        (
            "rounds_of_a_turn_that_waited_for_long_stay",
            "tuple(e for e in covered if e.id in outside)",
            "tuple(e for e in covered if e.id in outside and not case.view.turn)",
            "engine/test_outages.py::test_a_turn_that_waited_for_long_is_compacted_as_before",
        ),
        (
            "the_newest_call_is_shortened_too",
            "keep = _unchangeable(scope, case) | sign_bound(scope.entries, view) | {newest}",
            "keep = _unchangeable(scope, case) | sign_bound(scope.entries, view)",
            "compaction/test_arguments.py::test_older_arguments_are_excerpts_with_the_same_fields_and_types",
        ),
        (
            "signed_calls_are_shortened",
            "return frozenset(e.id for e in entries if e.id in own_ids and e.message.tool_calls and signed(e.message))",
            "return frozenset()",
            "compaction/test_arguments.py::test_signed_calls_of_the_turn_under_way_stay_whole",
        ),
    ),
    *_of(
        "compaction/background.py",
        (
            "a_prepared_summary_that_reaches_further_is_thrown_away",
            "and kept.isdisjoint(e.id for e in prepared_plan.covered)",
            "and {e.id for e in plan.covered}.issuperset(e.id for e in prepared_plan.covered)",
            "compaction/test_background.py::test_no_summary_is_paid_for_twice_where_few_turns_have_room",
        ),
        (
            "a_prepared_summary_covers_what_was_pinned_since",
            " and kept.isdisjoint(e.id for e in prepared_plan.covered)",
            "",
            "compaction/test_background.py::test_what_was_prepared_is_thrown_away_when_a_message_of_it_was_pinned",
        ),
    ),
    *_of(
        "compaction/built_in.py",
        (
            "outputs_give_way_all_at_once",
            "pruning = self.pruning if hard.due else [s for s in self.pruning if s != ClearToolOutputs()]",
            "pruning = [s for s in self.pruning if s != ClearToolOutputs(gently=True)]",
            "compaction/test_excerpts.py::test_outputs_shrink_step_by_step_at_epochs",
        ),
    ),
    *_of(
        "engine/recall.py",
        (
            "passages_always_have_references",
            "text = render(passages, references=stage.rules.references)",
            "text = render(passages)",
            "compaction/test_excerpts.py::test_a_session_without_references_names_no_message",
        ),
        (
            "passages_for_which_turns_give_way_always_have_references",
            "text = render(shown, references=rules.references)",
            "text = render(shown)",
            "compaction/test_excerpts.py::test_a_session_without_references_names_no_message",
        ),
        (
            "two_fifths_of_a_small_share_are_enough",
            "if room_tokens >= min(ENOUGH_TOKENS, share_tokens) or",
            "if room_tokens >= 0.4 * share_tokens or",
            "retrieval/test_tail_gives_way.py::test_older_messages_give_way_where_few_long_messages_would_find_room",
        ),
        (
            "nobody_speaks_for_an_excerpt",
            "context=_dialogue_with_excerpts(view, tail),",
            "context=(),",
            "retrieval/test_recall_beside_excerpts.py",
        ),
        (
            "an_agents_commands_bring_passages_too",
            "reaching=_works_with_tools(view),",
            "reaching=False,",
            "retrieval/test_reaching_back.py::test_a_command_about_something_new_brings_nothing",
        ),
        (
            "a_chat_recalls_only_what_reaches_back",
            "reaching=_works_with_tools(view),",
            "reaching=True,",
            "retrieval/test_reaching_back.py::test_without_tools_recall_is_generous",
        ),
        (
            "the_tail_of_a_large_window_gives_way",
            " or rules.budget_tokens > GIVES_WAY_TOKENS:",
            ":",
            "retrieval/test_tail_gives_way.py::test_a_large_window_keeps_its_tail",
        ),
        (
            "pinned_turns_give_way",
            "return [turn for turn in turns if turn and not any(e.id in stay for e in turn)]",
            "return [turn for turn in turns if turn]",
            "retrieval/test_tail_gives_way.py::test_pinned_messages_stay",
        ),
        (
            "a_message_is_shown_and_recalled",
            "shown = (p for p in passages if p.number not in numbers)",
            "shown = passages",
            "retrieval/test_tail_gives_way.py::test_no_message_is_shown_twice",
        ),
        (
            "what_gave_way_changes_within_a_turn",
            "        if known is not None and known.hidden:\n",
            "        if False and known:\n",
            "retrieval/test_tail_gives_way.py::test_the_request_begins_alike_all_turn_long",
        ),
        (
            "a_whole_tail_lacks_what_gave_way_in_the_turn",
            "        if whole_tail:\n",
            "        if whole_tail and (known is None or not known.hidden):\n",
            "retrieval/test_tail_gives_way.py::test_a_whole_tail_is_whole_in_the_middle_of_a_turn",
        ),
        (
            "a_window_with_the_whole_tail_changes_the_requests_of_the_turn",
            "        if keep:\n            open_session.keep_request_text",
            "        if True:\n            open_session.keep_request_text",
            "retrieval/test_tail_gives_way.py::test_a_whole_tail_is_whole_in_the_middle_of_a_turn",
        ),
        (
            "a_message_pinned_within_the_turn_stays_hidden",
            "if fits and not any(e.id in open_session.pins for e in missing):",
            "if fits:",
            "retrieval/test_tail_gives_way.py::test_a_message_that_is_pinned_within_the_turn_is_shown_again",
        ),
        (
            "nothing_stays_free_for_tool_rounds",
            "return stage.rules.budget_tokens // FREE_PART if tools else 0",
            "return 0",
            "retrieval/test_tail_gives_way.py::test_results_of_tools_keep_an_eighth_of_the_budget_free",
        ),
        (
            "a_chat_keeps_room_free_for_tool_rounds",
            "return stage.rules.budget_tokens // FREE_PART if tools else 0",
            "return stage.rules.budget_tokens // FREE_PART",
            "retrieval/test_tail_gives_way.py::test_a_chat_keeps_nothing_free_and_tools_an_eighth_of_the_budget",
        ),
        (
            "results_of_tools_keep_nothing_free",
            'tools = open_session.overhead_tokens or any(e.message.role == "tool" for e in stage.view)',
            "tools = open_session.overhead_tokens",
            "retrieval/test_tail_gives_way.py::test_results_of_tools_keep_an_eighth_of_the_budget_free",
        ),
        (
            "the_part_of_the_tail_that_stays_does_not_grow",
            "return rules.tail_ratio * max(rules.budget_tokens / 2, 2 * (rules.budget_tokens - SMALL_TOKENS))",
            "return rules.tail_ratio * rules.budget_tokens / 2",
            "retrieval/test_tail_gives_way.py::test_the_larger_the_window_the_more_of_the_tail_stays",
        ),
        (
            "the_tail_gives_way_where_1600_tokens_are_free",
            "ENOUGH_TOKENS = 1_600",
            "ENOUGH_TOKENS = 2_000",
            "retrieval/test_tail_gives_way.py::test_where_1600_tokens_are_free_nothing_gives_way",
        ),
    ),
    *_of(
        "session_state.py",
        (
            "an_excerpt_is_not_indexed_with_its_message",
            "expect=head, documents=(*documents, *placed)",
            "expect=head, documents=documents",
            "retrieval/test_recall_beside_excerpts.py::test_an_excerpt_is_found_whenever_the_process_has_ended",
        ),
        (
            "an_excerpt_is_indexed_where_it_would_stand_without_what_another_thread_stores",
            "if expect is None and (yield from StoreCall(Store.find, open_session.key, [d.id for d in drafts])):",
            "if False:",
            "retrieval/test_recall_beside_excerpts.py::test_an_excerpt_is_found_where_another_thread_stores_a_part_of_its_round",
        ),
        (
            "an_excerpt_is_not_indexed_where_another_writer_has_its_round",
            "placed = [replace(document, seq=seq) for seq, document in stored if seq is not None]",
            "placed = []",
            "retrieval/test_recall_beside_excerpts.py::test_an_excerpt_is_found_where_another_writer_comes_first",
        ),
        (
            "what_was_found_before_an_edit_is_shown_after_it",
            "(question.text, self.state.edits)",
            "(question.text, known.edits)",
            "retrieval/test_recall.py::test_an_edit_takes_the_older_version_of_a_message_out_of_recall",
        ),
    ),
    *_of(
        "engine/attempt.py",
        (
            "a_question_stays_between_another_and_its_answer",
            "return later[::-1] if len(later) < len(questions) else ()",
            "return ()",
            "llamaindex/test_memory_beside_llm.py::test_a_question_that_comes_while_another_is_asked_leaves_it_its_answer",
        ),
        (
            "a_second_reply_to_the_same_messages_is_lost",
            "    if (shared_turn := _shared_turn(attempt)) is None:\n",
            "    if (shared_turn := None) is None:\n",
            "llamaindex/test_llm_agents.py::test_two_requests_with_the_same_messages_at_once",
        ),
        (
            "the_process_that_opened_a_turn_loses_its_reply_to_a_faster_one",
            "            is_shared = state.entry(own_entries[-1].id) is not None\n",
            "            is_shared = turn_id != attempt.new_turn and state.entry(own_entries[-1].id) is not None\n",
            "llamaindex/test_overlapping_requests.py::test_two_processes_answer_one_question_and_both_replies_stay",
        ),
        (
            "a_reply_with_calls_loses_its_question_to_the_calls_of_another_process",
            "if shared_turn in state.open else []",
            "if shared_turn in state.open and not waiting else []",
            "llamaindex/test_overlapping_requests.py::test_two_replies_with_calls_of_two_processes_both_go_on",
        ),
        (
            "a_reply_is_put_in_front_of_a_request_that_was_asked_again",
            "+ [t for t, by in taken_over.items() if by in turn_ids]",
            "+ []",
            "llamaindex/test_llm_agents.py::test_a_reply_keeps_its_question_when_the_other_request_fails",
        ),
        (
            "a_question_that_another_request_has_added_stays_in_front_of_the_reply",
            "return later if all(is_question(e.message) for e in later) else ()",
            "return ()",
            "llamaindex/test_llm_agents.py::test_a_question_that_comes_while_the_one_before_is_asked_stands_behind_its_answer",
        ),
    ),
    *_of(
        "engine/calibrate.py",
        (
            "counts_of_turns_that_another_process_has_ended_are_kept",
            "        counts.pop(closed, None)\n",
            "        pass\n",
            "langchain/test_reported_counts.py::test_a_count_is_forgotten_when_another_process_has_ended_the_turn",
        ),
        (
            "an_overflow_teaches_nothing",
            "    if learnt is not None:\n        yield from append(",
            "    if learnt is not None and not learnt.model:\n        yield from append(",
            "engine/test_overflow.py::test_an_overflow_teaches_the_limit",
        ),
        (
            "a_limit_is_learnt_without_telling",
            "if open_session.window_rules(window) != before:",
            "if open_session.window_rules(window) is None:",
            "engine/test_events.py::test_a_limit_that_the_provider_tells_is_a_change_of_rules",
        ),
        (
            "a_truncated_prompt_teaches",
            "if cuts and was_truncated(",
            "if not cuts and was_truncated(",
            "engine/test_calibration.py::test_a_prompt_that_was_cut_in_silence_is_reported_and_not_learnt_from",
        ),
        (
            "what_is_beside_a_small_request_of_others_passes_for_an_error_of_our_count",
            "    if reported <= rules.hard_ratio * rules.budget_tokens:\n",
            "    if not reported:\n",
            "langchain/test_reported_counts.py::test_what_is_beside_a_small_request_is_no_error_of_our_count",
        ),
        (
            "the_next_list_teaches_nothing_about_the_count",
            "        if turn_id in counts:\n",
            "        if False:\n",
            "langchain/test_reported_counts.py::test_a_tool_round_teaches_too",
        ),
    ),
    *_of(
        "engine/fit.py",
        (
            "an_answered_question_that_fits_nowhere_stays",
            'return newest.id if newest is not None and answered and alone > rules.budget_tokens else ""',
            'return ""',
            "langchain/test_chains.py::test_a_question_too_large_for_the_window_gives_way_once_it_has_its_answer",
        ),
        (
            "bound_reasoning_loses_its_prefix_for_arguments",
            "return asks or not capabilities_of(self.ports.backend, open_session.model).binds_reasoning",
            "return True",
            "compaction/test_arguments.py::test_bound_reasoning_keeps_its_prefix_within_a_turn",
        ),
    ),
    *_of(
        "messages.py",
        (
            "the_new_id_of_a_call_is_that_of_another_one",
            'for number in count(2) if (name := f"{call}_{number}") not in taken)',
            'for number in count(2) if (name := f"{call}_{number}"))',
            "wire/test_model_switch.py::test_calls_with_the_same_id_have_ids_of_their_own_where_the_service_wants_it",
        ),
        (
            "texts_of_a_users_message_run_together",
            'joined += text if separated else f"\\n\\n{text}"',
            "joined += text",
            "backends/test_openai_request.py::test_texts_of_a_users_message_do_not_run_together",
        ),
    ),
    *_of(
        "history/passage_cache.py",
        (
            "calls_are_no_part_of_what_recall_reads",
            "calls = tuple(without_private_keys(_call_text(call)) for call in message.tool_calls)",
            "calls = ()",
            "retrieval/test_recall.py::test_tool_calls_are_recalled_with_their_message",
        ),
    ),
    *_of(
        "history/terms.py",
        (
            "the_end_of_a_window_hides_what_follows_a_sentence",
            "sure = limit - ENDING_CHARS if limit < len(text) else limit",
            "sure = limit",
            "retrieval/test_long_outputs.py::test_an_ending_at_the_end_of_a_window_is_seen_with_what_follows",
        ),
        (
            "windows_part_words_of_json",
            """' \\n\\t,"'""",
            """' \\n\\t'""",
            "retrieval/test_long_outputs.py::test_a_text_is_read_in_windows_as_it_is_at_once",
        ),
        (
            "the_end_of_a_line_in_json_is_the_first_letter_of_a_word",
            '_ESCAPED.sub(r" \\1\\2 \\2"',
            '_ESCAPED.sub(r" \\1\\2"',
            "retrieval/test_recall.py::test_words_at_the_beginning_of_a_line_of_an_argument_are_found",
        ),
        (
            "names_in_camel_case_are_one_word",
            "return (whole, *_words_within(token)) if word[1:] != token[1:] else (whole,)",
            "return (whole,)",
            "retrieval/test_recall.py::test_a_name_in_camel_case_is_found_by_its_words_and_as_a_whole",
        ),
        (
            "names_within_dotted_names_are_one_word",
            "        terms += _words_within(piece)\n",
            "",
            "retrieval/test_recall.py::test_a_name_in_camel_case_is_found_by_its_words_and_as_a_whole",
        ),
        (
            "data_is_split_like_a_name",
            "if 1 < len(words) <= len(name) / LEAST_MEAN_CHARS:",
            "if 1 < len(words):",
            "retrieval/test_recall.py::test_data_is_not_split_into_words",
        ),
        (
            "the_first_line_of_a_numbered_file_is_a_header",
            'if separator == "\\t" and number.strip().isdecimal() and "\\t" not in line.strip():',
            "if not separator:",
            "retrieval/test_recall.py::test_a_file_with_line_numbers_is_no_table",
        ),
        (
            "an_object_is_always_cut_at_its_list",
            "whole = isinstance(value, dict) and len(text) <= WHOLE_OBJECT_CHARS",
            "whole = False",
            "retrieval/test_recall.py::test_a_json_object_is_cut_at_its_list_when_it_is_long_only",
        ),
    ),
    *_of(
        "backends/http_backend.py",
        (
            "a_model_without_a_provider_is_asked_at_this_machine",
            "if not self._has_address:",
            "if False:",
            "engine/test_mistakes.py::test_services_that_cannot_be_used",
        ),
    ),
    *_of(
        "backends/anthropic/request.py",
        (
            "calls_of_several_rounds_share_an_id",
            "    messages = with_unique_calls(messages)\n",
            "",
            "wire/test_model_switch.py::test_calls_with_the_same_id_have_ids_of_their_own_where_the_service_wants_it",
        ),
    ),
    *_of(
        "retrieval/bm25.py",
        (
            "common_terms_of_a_short_session_are_not_read_in_full",
            "guessed[term] <= max(FEW, documents // RARE)",
            "guessed[term] <= documents // RARE",
            "retrieval/test_recall.py::test_terms_that_many_messages_of_a_short_session_have_are_read_in_full",
        ),
        (
            "of_equal_hits_the_older_comes_first",
            "seqs = sorted(scores, reverse=True)",
            "seqs = sorted(scores)",
            "retrieval/test_archive.py::test_of_equal_hits_the_newer_comes_first",
        ),
    ),
    *_of(
        "history/terms.py",
        (
            "what_is_left_of_short_forms_is_searched_for",
            'shortened = _SHORT_FORM.sub(" ", query)',
            "shortened = query",
            "retrieval/test_recall.py::test_short_forms_of_stop_words_are_no_terms",
        ),
        (
            "words_that_only_ask_in_other_languages_are_searched_for",
            "if certain <= english or certain + both < LEAST_FUNCTION_WORDS:",
            "if True:",
            "retrieval/test_recall.py::test_words_that_only_ask_are_no_terms_in_other_languages",
        ),
        (
            "names_with_an_article_tell_of_a_language",
            "words = {first.lower(), *filter(str.islower, others)}",
            "words = {first.lower(), *map(str.lower, others)}",
            "retrieval/test_recall.py::test_names_and_identifiers_are_no_words_that_only_ask",
        ),
        (
            "pieces_of_identifiers_are_words_that_only_ask",
            r"(?<![\w./])[^\W\d_]++(?!\w|[./]\w)",
            r"[^\W\d_]++",
            "retrieval/test_recall.py::test_names_and_identifiers_are_no_words_that_only_ask",
        ),
        (
            "english_questions_lose_words_of_other_languages",
            "if certain <= english or certain + both < LEAST_FUNCTION_WORDS:",
            "if False:",
            "retrieval/test_recall.py::test_words_that_only_ask_are_terms_in_an_english_question_or_alone",
        ),
        (
            "words_that_only_ask_in_chinese_are_searched_for",
            'query = _ASKS_CJK.sub(" ", query) if _IS_CJK.search(query) else query',
            "query = query",
            "retrieval/test_recall.py::test_words_that_only_ask_are_no_terms_in_other_languages",
        ),
        (
            "a_query_of_words_that_only_ask_has_no_terms",
            "tuple(term_counts(other_words)) or tuple(term_counts(shortened))",
            "tuple(term_counts(other_words))",
            "retrieval/test_recall.py::test_words_that_only_ask_are_terms_in_an_english_question_or_alone",
        ),
        (
            "an_ordinal_number_ends_a_sentence_in_recall",
            r"(?<=[.!?;])(?!{_ORDINAL_GOES_ON})\s+",
            r"(?<=[.!?;])\s+",
            "retrieval/test_recall.py::test_the_full_stop_of_an_ordinal_number_ends_no_sentence",
        ),
    ),
    *_of(
        "retrieval/search.py",
        (
            "words_that_only_ask_are_never_searched_for",
            "if not found.scores and len(every",
            "if False and len(every",
            "retrieval/test_recall.py::test_words_that_only_ask_are_searched_for_where_no_other_matches",
        ),
        (
            "usual_words_of_commands_ask_for_the_outputs_beside",
            "if times[roles[seq]] <= most[roles[seq]]:",
            "if seq:",
            "retrieval/test_recall_beside_excerpts.py::test_words_of_every_command_and_call_bring_no_output",
        ),
        (
            "a_page_number_asks_for_an_output_with_that_number",
            "LONG_NUMBER = 3 ",
            "LONG_NUMBER = 0 ",
            "retrieval/test_recall.py retrieval/test_reaching_back.py",
        ),
        (
            "visible_messages_are_recalled",
            "_mixed(by_words, by_meaning).items() if seq not in visible}",
            "_mixed(by_words, by_meaning).items()}",
            "retrieval/test_recall_beside_excerpts.py::test_nobody_but_the_output_is_recalled",
        ),
        (
            "a_message_is_whole_in_a_third_of_the_room_only",
            "WHOLE_RATIO * budget_tokens - OTHERS_TOKENS",
            "0",
            "retrieval/test_recall.py::test_a_message_of_nearly_half_of_the_room_is_shown_whole",
        ),
        (
            "age_counts_much_for_every_question",
            "AGE_WEIGHT = 0.02",
            "AGE_WEIGHT = 0.2",
            "retrieval/test_recall.py::test_age_decides_where_few_words_of_the_question_match",
        ),
        (
            "neighbours_reach_across_a_gap_of_records",
            "        if seq - last > REACH:\n            spaced += gap",
            "        if seq - last > 3 * REACH:\n            spaced += gap",
            "retrieval/test_recall.py::test_messages_with_a_gap_of_records_between_them_are_no_neighbours",
        ),
        (
            "a_neighbour_of_the_last_of_a_stretch_is_the_first_of_the_next",
            "        if seq - last > REACH:\n",
            "        if not spaced or seq - last > 2 * REACH:\n",
            "retrieval/test_recall.py::test_messages_of_two_stretches_are_no_neighbours",
        ),
        (
            "what_is_said_nearby_counts_alike_however_far",
            "            bends[at + 1] -= 2 * step * frequency\n            bends[at + REACH + 2] += step * frequency",
            "            bends[at + 1] -= step * frequency",
            "retrieval/test_recall.py::test_what_is_said_nearby_counts_less_with_each_step",
        ),
        (
            "a_message_counts_as_its_own_neighbour",
            "(nearby - peak * itself)",
            "nearby",
            "retrieval/test_recall.py::test_what_is_said_nearby_counts_less_with_each_step",
        ),
        (
            "the_same_word_nearby_counts_as_much_as_another_one",
            "total + weight * both / (both + K1)",
            "total + weight * both",
            "retrieval/test_recall.py::test_what_is_said_nearby_counts_less_with_each_step",
        ),
        (
            "results_far_behind_their_calls_have_no_call",
            "for n in {*range(1, STEPS_BEFORE + 1), steps})",
            "for n in range(1, STEPS_BEFORE + 1))",
            "retrieval/test_recall_beside_excerpts.py",
        ),
        (
            "what_is_said_before_an_output_does_not_count",
            "(terms - by_chance).union(*before)",
            "(terms - by_chance)",
            "retrieval/test_recall_beside_excerpts.py",
        ),
        (
            "words_that_every_call_has_ask_for_one_of_them",
            "*(t for t in in_calls if matches.weights[t] > HALF_WEIGHT)",
            "*in_calls",
            "retrieval/test_recall.py::test_words_that_every_call_has_do_not_ask_for_one_of_them",
        ),
        (
            "the_tail_gives_way_to_a_question_about_itself",
            "return best_in_archive < ARCHIVE_SHARE * best_in_tail",
            "return False",
            "retrieval/test_tail_gives_way.py::test_a_question_about_the_tail_keeps_it",
        ),
        (
            "a_message_is_whole_in_half_of_a_small_room",
            "WHOLE_RATIO, OTHERS_TOKENS = 0.5, 100",
            "WHOLE_RATIO, OTHERS_TOKENS = 0.5, 0",
            "retrieval/test_recall.py::test_a_message_of_nearly_half_of_the_room_is_shown_whole",
        ),
        (
            "age_counts_the_same_however_few_words_match",
            "AGE_WEIGHT * (fsum(found.weights.values()) / best_score if best_score else 1.0)",
            "AGE_WEIGHT",
            "retrieval/test_recall.py::test_age_decides_where_few_words_of_the_question_match",
        ),
    ),
    *_of(
        "retrieval/passages.py",
        (
            "every_passage_that_does_not_fit_is_counted",
            " and misses < MOST_MISSES:",
            ":",
            "retrieval/test_long_outputs.py::test_passages_that_do_not_fit_are_not_all_counted",
        ),
        (
            "lines_are_counted_as_they_are_stored",
            'count(_quoted("", text)) + 2',
            "count(text) + 2",
            "retrieval/test_recall.py::test_lines_of_a_file_that_was_written_never_take_more_than_the_budget",
        ),
        (
            "a_word_of_most_lines_chooses_among_them",
            "power = count / (count + HALF_SENTENCES)",
            "power = 0.0",
            "retrieval/test_recall.py::test_a_word_of_most_lines_chooses_none_of_them",
        ),
        (
            "what_was_said_twice_is_recalled_twice",
            "if not text or text in texts:",
            "if not text:",
            "retrieval/test_recall.py::test_what_was_said_twice_is_recalled_once",
        ),
        (
            "a_message_that_does_not_fit_is_not_recalled_at_all",
            "if not places and len(each.sentences) > 1:",
            "if False:",
            "retrieval/test_recall.py::test_of_a_message_that_does_not_fit_the_sentence_that_matches_best_is_recalled",
        ),
        (
            "a_long_message_that_goes_on_from_a_hit_is_not_recalled",
            "places = [at for at, value in enumerate(values) if value] or range(min(NEAR_SENTENCES, len(values)))",
            "places = [at for at, value in enumerate(values) if value]",
            "retrieval/test_recall.py::test_of_a_long_message_that_goes_on_from_a_hit_the_beginning_is_recalled",
        ),
        (
            "passages_of_other_days_have_no_date",
            'dated = "" if day is None or day == last else _date(int(day))',
            'dated = ""',
            "retrieval/test_recall.py::test_what_was_stored_on_another_day_is_dated_once",
        ),
    ),
    *_of(
        "history/posting_cache.py",
        (
            "lengths_outlive_the_index_that_they_were_read_from",
            "            self._newest.clear()\n            self._lengths = {}",
            "            self._newest.clear()",
            "retrieval/test_recall.py::test_a_neighbour_that_is_archived_later_is_found_by_the_next_question",
        ),
    ),
    *_of(
        "history/prompt_safety.py",
        (
            "only_the_first_sign_of_a_kind_of_secret_counts",
            "_any_of(sign for _, signs, _ in _SECRETS for sign in signs)",
            "_any_of(signs[0] for _, signs, _ in _SECRETS)",
            "compaction/test_redaction.py",
        ),
        (
            "a_name_that_code_uses_too_is_a_secret_whatever_its_value",
            "(?={_SIGNS}*[0-9])(?={_SIGNS}*[A-Za-z])",
            "",
            "compaction/test_redaction.py::test_ordinary_identifiers_stay",
        ),
        (
            "a_call_in_code_is_taken_for_a_secret",
            r"(?![\w(\[{{<])",
            r"(?![\w])",
            "compaction/test_redaction.py::test_ordinary_identifiers_stay",
        ),
        (
            "a_word_that_begins_another_does_not_count_as_a_sign",
            '        if "" in rest:\n            return ""  # a word ends here: whatever follows, it was found\n',
            "        rest.pop('', None)\n",
            "compaction/test_redaction.py",
        ),
    ),
    *_of(
        "session_state.py",
        (
            "an_error_names_the_window_in_our_own_tokens",
            "configured = self.own_rules().context_window if context_window is None else context_window",
            "configured = taken = self.rules(context_window).context_window",
            "engine/test_calibration.py",
        ),
        (
            "a_session_leaves_memory_in_spite_of_a_request",
            "            self.in_flight\n",
            "            set[str]()\n",
            "engine/test_max_sessions.py",
        ),
        (
            "a_session_leaves_memory_in_spite_of_a_compaction",
            "            or self.compacting\n",
            "            or 0\n",
            "engine/test_max_sessions.py",
        ),
        (
            "a_session_leaves_memory_in_spite_of_a_rollback",
            "            or self.pending_rollbacks\n",
            "            or {}\n",
            "engine/test_max_sessions.py",
        ),
        (
            "refresh_takes_a_log_that_was_begun_anew_for_the_old_one",
            "if head and (not records or records[0].id != head_id):",
            "if head and not records:",
            "erasure/test_erase_sessions.py::test_others_notice_that_a_session_was_begun_anew",
        ),
        (
            "append_revives_an_erased_session",
            "known_id=known_id or None,",
            "known_id=None,",
            "erasure/test_erase_sessions.py::test_a_reply_that_was_under_way_does_not_revive_a_session",
        ),
        (
            "an_erasure_by_another_process_forgets_nothing",
            "if any(isinstance(r.body, Erased) for r in records):",
            "if not records:",
            "erasure/test_erase_meanwhile.py::test_what_is_learnt_meanwhile_is_not_kept",
        ),
        (
            "a_stale_state_is_kept",
            "    while open_session.state.stale:\n",
            "    while open_session.state.stale and open_session.erasures < 0:\n",
            "engine/test_session.py::test_undo_takes_edits_back_one_by_one",
        ),
        (
            "a_turn_is_closed_twice",
            "for t in turn_ids if t in state.open]",
            "for t in turn_ids]",
            "engine/test_exchange.py engine/test_journal.py",
        ),
        (
            "young_turns_are_taken_for_dead",
            "if now - turn.at_s > TURN_TIMEOUT_S",
            "if now - turn.at_s >= 0",
            "engine/test_journal.py",
        ),
        (
            "a_window_set_at_run_time_is_overruled",
            "for name in WINDOW_FIELDS if name not in self.state.fixed}",
            "for name in WINDOW_FIELDS}",
            "engine/test_model_limits.py engine/test_session.py",
        ),
        (
            "a_session_is_loaded_from_its_first_record",
            "_fold_from(key, head.snapshot_seq, frozenset(), ports)",
            "_fold_from(key, 0, frozenset(), ports)",
            "engine/test_journal.py::test_a_long_session_opens_from_its_window",
        ),
        (
            "an_edit_is_written_on_a_head_that_moved",
            "append(open_session, drafts, ports, expect=head, documents=documents())",
            "append(open_session, drafts, ports, documents=documents())",
            "engine/test_session.py::test_edits_are_decided_anew_on_the_new_head engine/test_session.py::test_pins_have_a_budget",
        ),
        (
            "a_closed_turn_takes_messages",
            "        closed = turn_id in open_session.state.closed\n",
            "        closed = turn_id in open_session.state.open and turn_id in open_session.state.closed\n",
            "llamaindex/test_overlapping_requests.py::test_a_question_that_was_taken_back_elsewhere_is_asked_again",
        ),
        (
            "rules_of_one_window_are_taken_for_those_of_another",
            "self.opening_policy, context_window)",
            "self.opening_policy)",
            "engine/test_request_window.py::test_a_narrower_window_has_the_session_compacted_until_the_request_fits",
        ),
    ),
    *_of(
        "history/calibration.py",
        (
            "a_limit_without_room_for_the_question_is_learnt",
            "if prompt >= least_tokens else limit",
            "if prompt > 0 else limit",
            "langchain/test_model_limits.py::test_a_reply_that_leaves_no_room_for_the_question",
        ),
        (
            "one_reply_makes_a_window_wider",
            "if known.samples < WIDENS_AFTER:",
            "if False:",
            "engine/test_calibration.py::test_a_window_gets_wider_only_after_three_replies",
        ),
        (
            "a_learnt_limit_widens_the_window",
            "limit >= rules.context_window else",
            "limit == rules.context_window else",
            "engine/test_model_limits.py::test_a_limit_never_widens_the_window",
        ),
        (
            "a_refusal_counts_the_reply_too",
            "min(requested, requested - max_tokens, key",
            "max(requested, requested - max_tokens, key",
            "engine/test_overflow.py::test_a_refusal_that_counts_the_room_for_the_reply_says_nothing_about_our_counts",
        ),
        (
            "foreign_counts_are_learnt",
            "if not LIMITS[0] <= ratio_now <= LIMITS[1]:",
            "if not ratio_now <= LIMITS[1]:",
            "engine/test_calibration.py::test_counts_that_are_not_of_this_text_are_not_learnt",
        ),
        (
            "the_error_of_counts_is_forgotten",
            "error = max(missed, FORGET * known.error)",
            "error = missed",
            "engine/test_calibration.py::test_one_good_guess_does_not_end_the_caution_after_a_bad_one",
        ),
    ),
    *_of(
        "engine/known_messages.py",
        (
            "discarded_messages_stay_known",
            "if r.turn_id not in discarded and r.id not in",
            "if r.id not in",
            "engine/test_journal.py::test_discarded_messages_may_come_again",
        ),
        (
            "erased_messages_come_back",
            "if chain and isinstance(chain[-1].body, Erased):",
            "if not chain:",
            "erasure/test_erase.py::test_an_erased_message_does_not_come_back_with_an_old_list",
        ),
        (
            "what_an_open_turn_holds_counts_as_gone",
            "removed = message_id not in open_ids and (",
            "removed = bool(message_id) and (",
            "engine/test_outages.py::test_a_removed_call_that_is_under_way_again_is_known",
        ),
        (
            "a_late_result_brings_its_call_without_the_other_results",
            "other_calls = {c.id for c in calling.tool_calls} - calls",
            "other_calls = calls",
            "engine/test_outages.py::test_results_that_come_late_bring_their_call_back",
        ),
    ),
    *_of(
        "history/log.py",
        (
            "what_was_compacted_in_its_turn_counts_as_removed",
            "            for message_id in covered:\n                self._comes_back(message_id)",
            "            for message_id in ():\n                self._comes_back(message_id)",
            "engine/test_outages.py::test_a_removed_call_that_was_compacted_when_it_came_again_is_known",
        ),
        (
            "a_copy_shares_its_open_turns",
            "OpenTurn(list(t.entries), t.at_s)",
            "OpenTurn(t.entries, t.at_s)",
            "engine/test_journal.py::test_a_copied_state_is_the_same_and_apart",
        ),
        (
            "a_copy_shares_its_sets",
            "value, list | dict | set",
            "value, list | dict",
            "engine/test_journal.py::test_a_copied_state_is_the_same_and_apart",
        ),
        (
            "a_discarded_turn_joins_the_conversation",
            'if turn is None or status == "discarded":',
            "if turn is None:",
            "engine/test_exchange.py::test_a_failure_leaves_the_session_as_it_was_and_can_be_tried_again",
        ),
        (
            "half_a_tool_round_joins_the_conversation",
            "complete = complete_prefix(turn.entries)",
            "complete = len(turn.entries)",
            "engine/test_outages.py::test_a_retry_after_the_turn_was_aborted_stores_what_it_did_not_keep",
        ),
        (
            "an_epoch_number_comes_again_after_an_undo",
            "self.epoch += 2",
            "self.epoch += 1",
            "engine/test_prefix.py::test_an_edit_that_was_undone_is_a_break_of_its_own",
        ),
        (
            "an_undo_counts_as_no_edit",
            "self.edits += 2",
            "self.edits += 1",
            "engine/test_prefix.py::test_an_edit_that_was_undone_is_a_break_of_its_own",
        ),
        (
            "a_calibration_loses_the_limit",
            "if limit is not None or known is None else replace(",
            "if limit is None or known is None else replace(",
            "engine/test_model_limits.py::test_a_calibration_survives_a_restart_and_keeps_the_limit",
        ),
        (
            "removed_messages_are_recalled",
            "self._take_out(e for e in self.live if e.id in ids)",
            "self._take_out(())",
            "engine/test_leaving.py::test_recall_does_not_bring_it_back",
        ),
        (
            "what_was_compacted_before_a_clearing_is_recalled",
            "return _OutOfRecall(seqs, self.cleared_seq, self.uncleared) if self.cleared_seq else seqs",
            "return seqs",
            "engine/test_leaving.py::test_recall_does_not_bring_back_what_was_compacted_before_the_conversation_was_emptied",
        ),
        (
            "what_came_back_after_a_clearing_stays_out_of_recall",
            "if entry.seq < self.cleared_seq:",
            "if entry.seq < 0:",
            "engine/test_leaving.py::test_what_comes_back_after_a_clearing_is_recalled_once_it_is_compacted",
        ),
        (
            "a_turn_that_a_result_ended_does_not_count",
            "is_final(entry.message) or (is_question(entry.message) and self._ends_with_results())",
            "is_final(entry.message)",
            "engine/test_toolkit.py::test_a_turn_that_a_tools_result_ended_is_over_when_the_next_question_follows",
        ),
        (
            "an_erasure_leaves_the_state_as_it_was",
            "self.stale = self.stale or record.seq > self.read_upto",
            "self.stale = self.stale or record.seq < self.read_upto",
            "erasure/test_erase.py::test_a_message_leaves_every_place erasure/test_erase_meanwhile.py",
        ),
        (
            "a_covered_message_stays_in_view",
            "for e in entries if e.id not in covered]",
            "for e in entries]",
            "engine/test_session.py::test_undo_of_a_compaction",
        ),
        (
            "the_older_version_of_an_edited_message_is_recalled",
            "        self._take_out(e for e in self.live if e.id in new and e.seq != new[e.id].seq)\n",
            "",
            "retrieval/test_recall.py::test_an_edit_takes_the_older_version_of_a_message_out_of_recall",
        ),
        (
            "a_restored_message_counts_as_taken_out",
            "self.taken_out.pop(entry.seq, None)",
            "self.taken_out.pop(-1, None)",
            "engine/test_leaving.py::test_what_was_restored_is_brought_back_once_it_is_compacted",
        ),
        (
            "two_writers_bring_a_message_back_twice",
            "        if entry.id in self._visible_ids():\n            return False",
            "        if entry.id in self.removed:\n            return False",
            "engine/test_undo.py",
        ),
        (
            "saved_tokens_are_not_summed",
            "self.avoided_tokens += self.saved_tokens",
            "self.avoided_tokens = self.saved_tokens",
            "engine/test_cost.py",
        ),
    ),
    *_of(
        "history/cuts.py",
        (
            "what_a_tool_adds_stays_in_front_of_the_other_results",
            "    messages = _with_results_together(messages, waiting or ())\n",
            "",
            "langchain/test_added_messages.py",
        ),
        (
            "a_late_result_is_moved_once",
            "            for call_id in results.elements():\n                take_one(unanswered, call_id)\n",
            "            unanswered.clear()\n",
            "langchain/test_added_messages.py",
        ),
        (
            "some_results_of_a_round_are_enough",
            "    if len(starts) > 1 and Counter(waiting) -",
            "    if False and Counter(waiting) -",
            "engine/test_bad_input.py::test_results_of_a_round_that_the_list_went_on_from_are_left_out",
        ),
        (
            "two_calls_of_one_id_have_one_result",
            "    legal, waiting = list[Message](), Counter(calls)",
            "    legal, waiting = list[Message](), Counter(set(calls))",
            "langchain/test_calls_of_one_id.py",
        ),
        (
            "one_result_answers_all_calls_of_its_id",
            "                    answered[call.id] -= 1\n",
            "                    pass\n",
            "langchain/test_calls_of_one_id.py",
        ),
        (
            "a_cut_parts_a_call_from_its_result",
            "    if not waiting:\n        cuts.add(len(entries))",
            "    if waiting is not None:\n        cuts.add(len(entries))",
            "engine/test_outages.py::test_a_retry_after_the_turn_was_aborted_stores_what_it_did_not_keep",
        ),
        (
            "a_pin_keeps_half_a_round",
            "ids.update(e.id for e in entries[slice(*round_of(entries, index))])",
            "ids.add(entry.id)",
            "engine/test_session.py::test_pins_survive_with_their_round",
        ),
        (
            "a_note_for_the_user_ends_a_round",
            '        elif message.visibility != "user":\n            calls: list',
            "        else:\n            calls: list",
            "engine/test_audience.py::test_a_note_for_the_user_inside_a_tool_round",
        ),
        (
            "an_answer_without_its_question_leads",
            'if first is None or entries[first].message.role == "user":',
            'if first is None or entries[first].message.role != "tool":',
            "engine/test_first_message.py",
        ),
        (
            "an_open_call_is_followed_by_a_message",
            "        elif pending:\n",
            "        elif len(pending) > 99:\n",
            "engine/test_bad_input.py::test_orphan_tool_results",
        ),
        (
            "a_result_is_taken_twice",
            "            take_one(waiting, result.call_id)\n        if message.visibility",
            "            pass\n        if message.visibility",
            "engine/test_bad_input.py::test_orphans_are_left_out_where_they_may_be",
        ),
    ),
    *_of(
        "history/diff.py",
        (
            "a_copy_that_ends_the_list_is_a_second_answer",
            "return (count, entries[count - 1].id) if count else (0, known.id)",
            "return (count, entries[count - 1].id) if 0 < count < len(new_messages) else (0, known.id)",
            "faces/test_callers_lists.py::test_the_copy_of_a_reply_goes_to_the_next_node_once",
        ),
        (
            "a_copy_of_the_newest_answer_is_new",
            "return max(copied, _repeated_in_view(live, messages))",
            "return _repeated_in_view(live, messages)",
            "langchain/test_beside_other_middleware.py::test_a_history_without_ids_is_not_doubled_once_its_beginning_was_compacted",
        ),
        (
            "a_copy_of_the_newest_answer_ends_what_is_known",
            "return max(copied, _repeated_in_view(live, messages))",
            "return copied or _repeated_in_view(live, messages)",
            "faces/test_callers_lists.py",
        ),
        (
            "examples_with_the_newest_answer_are_new",
            "messages[max(index + 1, _repeated_in_view(live, messages)) :]",
            "messages[index + 1 :]",
            "faces/test_callers_lists.py",
        ),
        (
            "a_list_has_all_tool_rounds_of_the_view",
            'if not any(m.role == "tool" for m in messages):',
            "if False:",
            "langchain/test_beside_other_middleware.py::test_a_history_without_ids_is_answered_again",
        ),
        (
            "a_result_never_takes_the_place_of_a_note",
            'has_other_results = "tool" in later and',
            "has_other_results = False and",
            "llamaindex/test_llm_agents.py::test_a_result_comes_while_the_note_in_its_place_is_asked",
        ),
        (
            "white_space_around_an_answer_makes_it_another",
            "    if text == text.strip():\n        return content_key(message)",
            "    if text:\n        return content_key(message)",
            "faces/test_callers_lists.py",
        ),
        (
            "the_copy_of_a_reply_is_a_second_answer",
            "return Reconciled(new_messages[copied:], left_behind",
            "return Reconciled(new_messages, left_behind",
            "faces/test_callers_lists.py",
        ),
        (
            "what_a_list_repeats_of_the_view_is_stored_again",
            "return Reconciled(tuple(messages if whole else messages[repeated_by_content(live, messages) :]))",
            "return Reconciled(tuple(messages))",
            "faces/test_callers_lists.py",
        ),
        (
            "a_question_alone_is_enough_of_a_repeated_list",
            '{"user", "assistant"} <= {m.role for m in known}',
            "True",
            "faces/test_callers_lists.py",
        ),
        (
            "what_people_say_again_is_no_news",
            'if new_messages[0].role != "assistant" or live[-1].id',
            "if live[-1].id",
            "faces/test_callers_lists.py",
        ),
        (
            "a_note_beside_a_list_is_a_branch",
            'return tuple(e.id for e in later) if any(e.message.role == "assistant" for e in later) else ()',
            "return tuple(e.id for e in later)",
            "engine/test_whole_lists.py::test_a_note_beside_the_list_is_no_branch",
        ),
        (
            "a_changed_message_goes_unnoticed",
            "if version != cursor.handed[message_id]",
            "if version == cursor.root",
            "engine/test_follow.py::test_edits_and_removals",
        ),
        (
            "what_followed_a_regenerated_question_stays",
            "return _asked_again(live, message, session, from_window=from_window)",
            "return Reconciled(())",
            "llamaindex/test_memory_beside_llm.py::test_a_caller_goes_back_behind_later_questions",
        ),
        (
            "a_stored_answer_is_sent_behind_the_results_that_are_asked_about_again",
            'if message.role in ("user", "tool") else None',
            'if message.role == "user" else None',
            "llamaindex/test_memory_beside_llm.py::test_results_that_are_asked_about_again_give_up_their_answer",
        ),
        (
            "questions_that_came_meanwhile_leave_with_an_answer",
            "lambda e: not (from_window and is_question(e.message))",
            "lambda e: True",
            "llamaindex/test_memory_beside_llm.py::test_a_question_that_others_overtook_is_asked_behind_theirs",
        ),
        (
            "calls_that_nobody_answers_stay_in_the_turn",
            "    elif not new_messages and newest.tool_calls:\n        last -= 1\n",
            "",
            "langchain/test_failed_runs.py llamaindex/test_side_loop.py engine/test_exchange.py engine/test_whole_lists.py",
        ),
        (
            "a_list_whose_older_part_changed_only_goes_on",
            "[*self.handed] and incoming.digest(self.before) == self.digest",
            "[*self.handed]",
            "engine/test_follow.py::test_a_list_whose_older_part_changed_does_not_only_go_on",
        ),
    ),
    *_of(
        "history/prefix.py",
        (
            "a_shorter_conversation_counts_as_grown",
            " or len(new.live) < len(old.live):\n        return False\n    if not all",
            ":\n        return False\n    if not all",
            "llamaindex/test_memory_beside_llm.py::test_a_request_with_hidden_messages_repeats_no_more_than_it_holds",
        ),
        (
            "a_shorter_turn_counts_as_grown",
            "len(place) >= len(old.turn) and all(",
            "all(",
            "engine/test_prefix.py::test_a_question_that_was_asked_with_more_counts_no_further_than_it_was_sent_again",
        ),
        (
            "a_discarded_turn_counts_as_kept",
            "self._last.dropped = True",
            "self._last.dropped = False",
            "engine/test_prefix.py::test_a_question_that_was_taken_back_counts_as_no_prefix_of_the_next",
        ),
        (
            "tools_behind_a_break_count_as_reused",
            "if before is not None and cause is None:",
            "if before is not None:",
            "engine/test_prefix.py",
        ),
        (
            "an_epoch_does_not_break_the_prefix",
            "if heads != (new.epoch, len(new.system), len(new.compressed)) or",
            "if heads[1:] != (len(new.system), len(new.compressed)) or",
            "engine/test_prefix.py engine/test_exchange.py",
        ),
        (
            "an_erasure_breaks_no_prefix",
            'self.breaks["erasure"] += 1',
            'self.breaks["erasure"] += 0',
            "erasure/test_erase.py::test_the_next_request_says_why_its_prefix_broke",
        ),
        (
            "a_changed_system_prompt_breaks_no_prefix",
            "if not all(map(_same, old.system, new.system)):",
            "if not any(map(_same, old.system, new.system)) and not new.system:",
            "engine/test_prefix.py::test_prompts_of_calls_side_by_side_are_named_breaks",
        ),
    ),
    *_of(
        "protocols.py",
        (
            "the_backends_own_model_speaks_for_all",
            "return declared.of_model(model) if model and declared.of_model is not None else declared",
            "return declared",
            "wire/test_model_switch.py",
        ),
    ),
    *_of(
        "engine/turn.py",
        (
            "a_list_that_goes_on_from_a_question_taken_back_fails",
            "if turn_input.given_ids is None or turn_input.attached:",
            "if True:",
            "llamaindex/test_overlapping_requests.py::test_a_list_goes_on_from_a_question_that_is_taken_back_meanwhile",
        ),
        (
            "a_list_asks_behind_the_reply_that_it_lacks",
            "attempt.ends_with is None and _is_newest(open_session, reply):",
            "False:",
            "langchain/test_failed_runs.py::test_a_list_asks_anew_whose_results_were_compacted_before_their_reply",
        ),
        (
            "a_question_joins_the_turn_that_a_result_ended",
            "if not ended or (ended == 1 and open_calls(entries)):",
            "if ended >= 0:",
            "langchain/test_results_end_turns.py",
        ),
        (
            "the_retry_sends_the_same_request_again",
            "            open_session.refused_seqs[attempt.model] = open_session.state.head\n",
            "            pass\n",
            "wire/test_reasoning_retry.py",
        ),
        (
            "every_backend_is_asked_again_after_reasoning_replay",
            'if error.kind == "reasoning_replay" and (abilities.binds_reasoning or abilities.reasoning_optional):',
            'if error.kind == "reasoning_replay":',
            "wire/test_reasoning_retry.py::test_nothing_is_sent_twice_where_the_row_would_say_the_same",
        ),
        (
            "a_compaction_that_did_not_help_stays",
            "    for record_id in attempt.compactions:\n",
            "    for record_id in attempt.compactions[1:]:\n",
            "engine/test_overflow.py::test_a_second_refusal_leaves_the_session_as_it_was",
        ),
        (
            "an_overflow_compacts_where_it_may_not",
            "if not options.may_compact(open_session.rules(options.context_window)):",
            "if not open_session.rules(options.context_window).auto_compact:",
            "engine/test_overflow.py::test_an_overflow_that_cannot_be_helped",
        ),
        (
            "every_later_message_counts_as_of_another_attempt",
            "attempt.stored_ids = frozenset(m.id for m in placed.messages)",
            "attempt.stored_ids = frozenset()",
            "engine/test_exchange.py::test_a_cancellation_at_any_moment_leaves_all_or_nothing",
        ),
        (
            "a_stored_reply_is_asked_for_again",
            "if reply is not None and turn_input.given_ids is None:",
            "if reply is not None and turn_input.given_ids is not None:",
            "engine/test_outages.py::test_a_retry_gets_the_reply_that_is_stored_already",
        ),
        (
            "a_played_reply_that_is_given_up_is_taken_back",
            "    if reply.stored is None:\n",
            "    if reply.message_id:\n",
            "engine/test_outages.py::test_a_stored_reply_whose_replay_is_given_up_stays",
        ),
        (
            "a_request_goes_out_with_an_open_call",
            "    check_answered(open_session, attempt.turn_id)\n",
            "",
            "engine/test_exchange.py::test_nothing_is_asked_while_a_call_waits_for_its_result",
        ),
        (
            "an_older_question_may_not_be_too_large",
            "for m in reversed(messages) if is_question",
            "for m in messages if is_question",
            "engine/test_bad_input.py::test_an_older_message_that_does_not_fit_gives_way",
        ),
        (
            "a_failed_regeneration_loses_the_old_reply",
            "    if alone and attempt.removal:\n",
            "    if alone and attempt.removal and attempt.new_turn in open_session.state.open:\n",
            "engine/test_exchange.py::test_a_failed_regeneration_keeps_the_old_reply",
        ),
        (
            "a_failed_request_for_an_overtaken_question_loses_its_answer",
            "attempt.removal = yield from move_to_end(",
            "_ = yield from move_to_end(",
            "llamaindex/test_memory_beside_llm.py::test_an_overtaken_question_keeps_its_answer_when_the_second_one_fails",
        ),
        (
            "a_reply_id_that_comes_twice_is_refused",
            "replace(reply.message, id=ports.ids.new())",
            "replace(reply.message, id=reply.message.id)",
            "engine/test_exchange.py::test_a_reply_id_that_comes_twice_gets_a_new_one",
        ),
        (
            "a_cancelled_round_that_was_stored_stays_open",
            '        yield from engine.close(open_session, turn_id, "aborted")\n    else:',
            "        return\n    else:",
            "engine/test_exchange.py::test_a_cancel_right_after_a_reply_with_tool_calls_was_stored",
        ),
        (
            "a_narrower_request_window_counts_for_triggers",
            "wider = window if window is not None and window > open_session.own_rules().context_window else None",
            "wider = window",
            "engine/test_request_window.py::test_a_narrower_window_does_not_have_the_session_compacted_when_the_turn_ends",
        ),
        (
            "a_reply_that_filled_the_window_waits_for_a_trigger",
            'full = reply.finish_reason == "context_window"',
            'full = reply.finish_reason == "window"',
            "engine/test_overflow.py::test_a_reply_that_stopped_at_the_window_has_the_conversation_compacted",
        ),
    ),
    *_of(
        "engine/engine.py",
        (
            "a_rollback_waits_in_a_session_that_is_erased",
            "        except SessionNotFoundError:\n            pass  # erased",
            "        except ZeroDivisionError:\n            pass  # erased",
            "engine/test_max_sessions.py::test_a_session_that_is_erased_while_a_model_answers_leaves_memory",
        ),
        (
            "a_question_that_was_taken_back_is_lost",
            "if hold_in is not None and turn == turn_id:",
            "if False:",
            "langchain/test_taken_back.py::test_an_agent_keeps_the_question_of_a_cancelled_run",
        ),
        (
            "a_late_result_without_an_id_finds_no_call",
            "elif dropped := (yield from dropped_calls(open_session, checked)):",
            "elif dropped := ():",
            "llamaindex/test_memory_behaviours.py::test_a_result_that_takes_longer_than_a_turn_may_brings_its_call_back",
        ),
        (
            "no_trigger_is_asked_after_a_turn_that_a_result_ended",
            "(answers or is_final(new_messages[-1]))",
            "is_final(new_messages[-1])",
            "langchain/test_results_end_turns.py::test_a_trigger_is_asked_after_such_a_turn",
        ),
        (
            "a_result_for_a_call_of_another_engine_is_left_out",
            "if stale and len(record_ids) < len(checked):",
            "if False:",
            "llamaindex/test_memory_beside_llm.py::test_an_agent_that_is_handed_a_question_is_sent_the_handoff",
        ),
        (
            "a_long_turn_after_one_that_was_closed_is_spread_over_open_turns",
            "if turn in open_session.state.closed:",
            "if turn in open_session.state.undone:",
            "engine/test_journal.py::test_a_long_turn_is_stored_whole_after_another_context_closed_the_one_before",
        ),
        (
            "results_for_a_stored_call_hinder_the_rest_of_a_list",
            "turn_id, may_be_empty=True)",
            "turn_id)",
            "llamaindex/test_memory_beside_llm.py::test_a_call_that_the_session_has_a_note_for_does_not_hinder_a_run",
        ),
        (
            "a_result_after_its_note_was_answered_is_refused",
            "entries = view.turn or view.live[-RESULTS_LOOKED_AT:]",
            "entries = view.turn",
            "llamaindex/test_memory_beside_llm.py::test_a_result_that_comes_after_its_note_was_answered_is_passed_over",
        ),
        (
            "a_result_in_place_of_a_note_is_refused",
            "not may_be_empty and not (before_request and _has_results(",
            "not may_be_empty and not (False and _has_results(",
            "llamaindex/test_llm_agents.py::test_a_result_comes_while_the_note_in_its_place_is_asked",
        ),
        (
            "a_later_step_of_a_call_reads_the_log_again",
            "if open_session is not None and reread:",
            "if open_session is not None:",
            "langchain/test_middleware.py::test_a_model_call_of_an_agent_reads_its_log_once",
        ),
        (
            "a_rollback_takes_what_others_went_on_with",
            'if any(e.message.kind == "message" and e.id not in pending.stored_ids for e in entries):',
            "if any(not e.id for e in entries):",
            "properties/test_outages.py::test_a_failed_add_leaves_alone_what_another_process_went_on_with",
        ),
        (
            "what_cannot_be_taken_back_is_forgotten",
            "            open_session.pending_rollbacks[turn_id] = ",
            "            open_session.pending_rollbacks.copy()[turn_id] = ",
            "engine/test_outages.py::test_what_could_not_be_taken_back_at_once_is_taken_back_later",
        ),
        (
            "a_summary_in_a_turn_keeps_it_from_being_taken_back",
            'if any(e.message.kind == "message" and e.id not in pending.stored_ids for e in entries):',
            "if any(e.id not in pending.stored_ids for e in entries):",
            "properties/test_outages.py::test_a_failed_add_is_taken_back_after_its_compaction",
        ),
        (
            "a_rollback_of_unknown_outcome_is_not_read_again",
            "                yield from refresh(open_session, self.ports)  # a part of it may have been written\n",
            "",
            "properties/test_outages.py::test_a_rollback_that_was_stored_though_its_answer_was_lost_is_noticed",
        ),
        (
            "a_retry_opens_a_second_turn",
            "                turn = starts[-1][1]\n",
            "",
            "engine/test_outages.py engine/test_exchange.py",
        ),
        (
            "a_user_message_after_open_calls_joins_their_turn",
            'if waiting and for_model and for_model[0].role != "tool":',
            'if waiting and for_model and for_model[0].role == "system":',
            "engine/test_whole_lists.py::test_a_list_that_goes_on_from_an_open_call_ends_its_turn",
        ),
    ),
    *_of(
        "engine/fit.py",
        (
            "what_a_request_holds_besides_is_not_counted",
            "            if stage.view.tokens + overhead_tokens <= budget_tokens:\n",
            "            if stage.view.tokens <= budget_tokens:\n",
            "engine/test_whole_lists.py::test_what_else_the_request_holds_is_counted",
        ),
        (
            "the_room_for_a_long_reply_is_not_counted",
            "overhead_tokens += reply_tokens",
            "pass",
            "engine/test_budget.py engine/test_overflow.py",
        ),
        (
            "what_can_never_fit_is_compacted",
            "if (error := _too_large(stage, overhead_tokens, reply_tokens, window)) is not None:",
            "if (error := _too_large(stage.view, overhead_tokens, stage.rules, reply_tokens)) is not None and budget_tokens < 0:",
            "engine/test_overflow.py::test_what_no_compaction_could_help_is_not_compacted",
        ),
        (
            "what_does_not_fit_is_sent",
            "        if stage.view.tokens + overhead_tokens > budget_tokens:\n",
            "        if stage.view.tokens + overhead_tokens > 2 * budget_tokens:\n",
            "engine/test_overflow.py engine/test_audience.py engine/test_request_window.py",
        ),
        (
            "nothing_is_due_until_the_window_is_full",
            "            and used_tokens < ratio * rules.budget_tokens\n",
            "            and used_tokens < rules.budget_tokens\n",
            "compaction/test_compaction.py compaction/test_background.py",
        ),
        (
            "a_strategy_of_the_users_is_not_asked_below_the_ratios",
            "            and rules.strategy not in self.strategies\n",
            "",
            "compaction/test_own_strategies.py::test_a_strategy_under_a_built_in_name_is_asked_after_every_turn",
        ),
        (
            "waiting_tool_summaries_are_forgotten",
            "            and len(open_session.state.deferred) < WAITING_SUMMARIES\n",
            "",
            "compaction/test_pairs.py",
        ),
        (
            "a_goal_is_refreshed_only_under_pressure",
            "            and not needs_goal(rules)\n",
            "",
            "engine/test_goal.py::test_a_stored_turn_asks_for_the_goal_in_a_window_with_room",
        ),
    ),
    *_of(
        "engine/request.py",
        (
            "reasoning_that_one_model_refused_is_kept_from_all",
            "open_session.refused_seqs.get(model, 0)",
            "max(open_session.refused_seqs.values(), default=0)",
            "wire/test_model_switch.py",
        ),
        (
            "passages_stand_behind_the_question",
            'if passages and scratch.role == "user" and messages and',
            'if passages and scratch.role == "tool" and messages and',
            "retrieval/test_recall.py engine/test_exchange.py",
        ),
        (
            "passages_count_as_stable",
            "if messages[i].id in (SCRATCH_ID, PASSAGES_ID))",
            "if messages[i].id in (SCRATCH_ID,))",
            "engine/test_exchange.py::test_recalled_passages_are_not_part_of_the_stable_messages",
        ),
        (
            "the_newest_message_counts_as_bound",
            "enumerate(view) if entry.seq <= seq)",
            "enumerate(view) if entry.seq < seq)",
            "engine/test_prefix.py wire/test_reasoning_retry.py",
        ),
        (
            "a_break_leaves_reasoning_bound",
            "    if cause is not None:\n        open_session.unbound_seq = open_session.state.head",
            "    if cause is None:\n        open_session.unbound_seq = open_session.state.head",
            "engine/test_prefix.py::test_bound_reasoning_counts_as_unbound_after_a_compaction_and_scratch_is_frozen",
        ),
    ),
    *_of(
        "engine/attach.py",
        (
            "an_earlier_state_goes_on_with_the_summary_of_later_replies",
            'm.kind == "message" and m.id in covered for m in added)',
            'm.kind == "message" and m.id in () for m in added)',
            "engine/test_follow.py::test_an_earlier_state_whose_later_replies_were_all_compacted_goes_on_in_a_branch",
        ),
        (
            "what_a_failed_request_has_compacted_is_stored_again",
            "lost = [i for i in lost if i not in compacted]",
            "pass",
            "langchain/test_failed_runs.py::test_a_run_goes_on_after_its_rounds_were_compacted_and_the_model_was_down",
        ),
        (
            "a_reply_that_was_compacted_is_asked_for_again",
            "if all(m.id != asked_id for m in reversed(messages)):",
            "if False:",
            "engine/test_outages.py::test_a_retry_gets_its_reply_although_the_conversation_went_on",
        ),
        (
            "a_turn_that_the_list_has_rewritten_is_gone_on_with",
            "if any(not is_same(e, incoming.message(positions[e.id])) for e in own):",
            "if False:",
            "langchain/test_place_pauses.py::test_a_call_that_a_handoff_took_out_does_not_hinder_a_new_process",
        ),
        (
            "a_failed_run_takes_its_question_along",
            " or _has_passed_open_turn(open_session, incoming):",
            ":",
            "langchain/test_place_pauses.py::test_the_question_of_a_run_that_failed_is_asked_in_a_new_process_too",
        ),
        (
            "a_list_without_a_cursor_always_continues",
            "return used and (yield from start.kept_elsewhere)",
            "return False",
            "langchain/test_beside_other_middleware.py::test_a_thread_that_is_begun_anew",
        ),
        (
            "an_edited_first_question_is_no_older_state",
            "if not all(is_same(entry, message) for entry, message in compared):",
            "if False:",
            "langchain/test_beside_other_middleware.py::test_an_edit_of_a_first_question_whose_answer_no_checkpoint_has",
        ),
        (
            "what_a_failed_request_stored_is_not_compared",
            "changed |= yield from _changed_since(open_session, incoming, cursor)",
            "pass",
            "langchain/test_beside_other_middleware.py::test_what_is_changed_after_a_failed_request",
        ),
        (
            "nothing_before_a_message_that_was_left_out_is_followed",
            "return newest[min(oldest, len(newest) - unbroken) :]",
            "return newest[len(newest) - unbroken :]",
            "langchain/test_beside_other_middleware.py::test_what_is_changed_before_calls_that_nobody_answered",
        ),
        (
            "two_runs_ask_in_one_turn",
            "(yield from _was_answered(open_session, cursor.head)) or _is_asked(open_session, cursor):",
            "(yield from _was_answered(open_session, cursor.head)):",
            "langchain/test_beside_other_middleware.py::test_a_run_that_goes_on_while_a_cancelled_one_is_still_asking",
        ),
        (
            "an_older_list_is_added_to_a_session_made_anew",
            "if any(e.id not in incoming.ids for e in open_session.view().live[-1:]):",
            "if False:",
            "langchain/test_beside_other_middleware.py::test_an_earlier_checkpoint_whose_session_was_lost",
        ),
        (
            "a_note_makes_a_branch",
            'if any(m.role == "assistant" and m.kind == "message" for m in later):',
            'if any(m.kind == "message" for m in later):',
            "engine/test_follow.py::test_a_note_makes_no_branch",
        ),
        (
            "a_branch_has_what_came_later",
            "open_session.key, upto=cursor.head)",
            "open_session.key, upto=None)",
            "engine/test_follow.py::test_an_earlier_state_goes_on_in_a_branch",
        ),
        (
            "what_was_removed_on_purpose_is_told_anew",
            "lost = [i for i in hidden_ids if i not in open_session.state.removed]",
            "lost = list(hidden_ids)",
            "engine/test_follow.py::test_what_was_taken_out_of_the_session_stays_out",
        ),
        (
            "a_copy_writes_into_its_original",
            "    copied = cursor.root != root.session\n",
            "    copied = False\n",
            "engine/test_follow.py::test_a_copy_under_another_name",
        ),
        (
            "an_edited_open_turn_is_not_told_anew",
            "        if any(i in changed for i in ids):\n",
            "        if not ids:\n",
            "engine/test_follow.py::test_a_turn_under_way_is_told_anew_when_it_was_edited",
        ),
        (
            "a_partial_reply_counts_as_heard",
            'reply.kind != "message" or reply.finish_reason == "aborted"',
            'reply.kind != "message"',
            "engine/test_outages.py::test_a_partial_reply_is_not_the_answer_to_a_retry",
        ),
    ),
    *_of(
        "engine/edit.py",
        (
            "excerpts_of_a_conversation_that_is_set_are_not_indexed",
            "append_messages(open_session, drafts, engine.ports, expect=expect, documents=documents)",
            "append(open_session, drafts, engine.ports, expect=expect, documents=documents)",
            "retrieval/test_recall_beside_excerpts.py::test_the_originals_of_excerpts_are_found_in_a_conversation_that_was_set",
        ),
        (
            "excerpts_of_the_new_end_of_a_conversation_are_not_indexed",
            "append_messages(open_session, drafts, engine.ports, expect=head, documents=documents)",
            "append(open_session, drafts, engine.ports, expect=head, documents=documents)",
            "retrieval/test_recall_beside_excerpts.py::test_the_originals_of_excerpts_are_found_in_a_conversation_that_was_set",
        ),
        (
            "what_a_summary_stands_for_stays_when_it_is_replaced",
            'live = {e.id: e for e in view.live if e.message.kind != "summary"}',
            "live = {e.id: e for e in view.live}",
            "engine/test_anew.py::test_messages_that_a_summary_in_their_turn_stands_for_go_with_it",
        ),
        (
            "an_undo_overflows_the_window",
            "if before.view().tokens > rules.budget_tokens:",
            "if before.view().tokens > 2**40:",
            "engine/test_session.py::test_undo_of_a_compaction",
        ),
        (
            "an_undo_takes_back_half_an_edit",
            "            return (record_id, *(others or ()))\n",
            "            return (record_id, *(others or ())[:0])\n",
            "engine/test_undo.py retrieval/test_archive.py engine/test_anew.py",
        ),
        (
            "pins_have_no_budget",
            "    if tokens > limit:\n",
            "    if tokens > limit and not ids:\n",
            "engine/test_session.py::test_pins_have_a_budget",
        ),
        (
            "a_prompt_that_a_list_lacks_makes_it_another",
            " and m.id not in without",
            "",
            "llamaindex/test_memory_beside_llm.py::test_a_known_list_is_not_stored_anew_because_the_session_has_a_prompt",
        ),
        (
            "what_was_left_behind_may_not_return",
            "superseded=not may_return)",
            "superseded=True)",
            "engine/test_whole_lists.py::test_another_branch_and_back",
        ),
        (
            "half_a_tool_round_is_common",
            "        same -= 1  # a tool round",
            "        break  # a tool round",
            "engine/test_anew.py::test_a_tool_round_that_differs_is_replaced_as_a_whole",
        ),
        (
            "an_update_is_for_another_message",
            "    return live[index].id\n",
            "    return live[index - 1].id\n",
            "engine/test_session.py::test_create_read_update_delete",
        ),
        (
            "revise_writes_over_what_others_said",
            "prompts=True, pins=pins, expect=head)",
            "prompts=True, pins=pins)",
            "engine/test_anew.py::test_revise_is_asked_anew_where_somebody_writes_meanwhile",
        ),
    ),
    *_of(
        "engine/archive.py",
        (
            "a_fork_keeps_what_was_erased_meanwhile",
            "if open_session.erasures == erasures:",
            "if open_session.erasures >= erasures:",
            "erasure/test_erase_forks.py::test_an_erasure_while_a_fork_is_made",
        ),
        (
            "a_fork_hears_of_turns_under_way",
            '"aborted" if shown else "discarded"',
            '"aborted" if name else "discarded"',
            "retrieval/test_archive.py::test_a_fork_does_not_know_later_undos_or_other_turns",
        ),
        (
            "restored_messages_overflow_the_window",
            "    if needed > rules.budget_tokens:\n",
            "    if needed > 2**40:\n",
            "retrieval/test_archive.py::test_restore_checks_the_budget_first",
        ),
        (
            "a_result_comes_back_without_its_call",
            "            group = yield from _round(open_session, record, message)\n",
            "            group = {record.seq: message}\n",
            "retrieval/test_archive.py::test_restore_brings_originals_back_at_the_tail",
        ),
        (
            "a_fork_ends_within_a_round",
            "    if partial_round:\n",
            "    if partial_round and at is None:\n",
            "retrieval/test_archive.py::test_a_fork_goes_on_from_a_message engine/test_session.py",
        ),
    ),
    *_of(
        "engine/retention.py",
        (
            "an_erasure_counts_as_use",
            "if record.body.kind in NUMBERED and not record.id.startswith(NOTICE):",
            "if record.body.kind in NUMBERED:",
            "erasure/test_retention.py::test_by_age",
        ),
        (
            "open_turns_are_pruned",
            "for i, (at_s, size, turn_id) in sizes.items() if turn_id in closed}",
            "for i, (at_s, size, turn_id) in sizes.items()}",
            "erasure/test_retention.py::test_tool_rounds_and_open_turns_stay_whole",
        ),
    ),
    *_of(
        "effects.py",
        (
            "the_lease_is_kept_after_an_error",
            "    except BaseException:\n        yield from StoreCall(Store.release, key, name, holder)\n        raise",
            "    except BaseException:\n        raise",
            "erasure/test_retention.py::test_one_worker_at_a_time",
        ),
    ),
    *_of(
        "stores/sql_rows.py",
        (
            "an_open_reader_reads_on_in_an_erased_log",
            'f"(SELECT session, head FROM ctxfold_sessions WHERE owner = {self.mark})",',
            'f"(SELECT session, -1 FROM ctxfold_sessions WHERE owner = {self.mark})",',
            "erasure/test_retention.py::test_a_killed_erasure_of_an_owner_is_completed",
        ),
    ),
    *_of(
        "engine/known_messages.py",
        (
            "what_a_summary_hides_belongs_to_no_turn",
            'if any(e.message.kind == "summary" for entries',
            'if any(e.message.kind == "note" for entries',
            "properties/test_outages.py::test_a_new_process_continues_a_turn_whose_messages_are_all_compacted",
        ),
    ),
    *_of(
        "engine/erase.py",
        (
            "no_subscriber_hears_that_a_session_is_erased",
            "engine.events.emit(MessagesErased(key.session, ()))",
            "pass",
            "langchain/test_with_context.py::test_no_window_is_kept_of_what_was_erased",
        ),
        (
            "no_subscriber_hears_that_an_owner_is_erased",
            "engine.events.emit(*(MessagesErased(name, ()) for name in names))",
            "pass",
            "langchain/test_with_context.py::test_no_window_is_kept_of_what_was_erased",
        ),
        (
            "an_event_loop_waits_until_a_log_is_rewritten",
            "return (yield from Call(lambda: run(_rewrite_log(ports, key, records, erased_ids, rewritten), ports)))",
            "return (yield from _rewrite_log(ports, key, records, erased_ids, rewritten))",
            "erasure/test_erase.py::test_an_event_loop_goes_on_while_a_log_is_rewritten",
        ),
        (
            "a_log_that_was_begun_anew_counts_as_known",
            "if later[:1] == (known[-1],) and not any(",
            "if not any(",
            "erasure/test_erase_meanwhile.py::test_a_session_that_was_begun_anew_meanwhile_is_left_alone",
        ),
        (
            "a_log_that_another_erasure_rewrote_counts_as_known",
            " and not any(isinstance(record.body, Erased) for record in later)",
            "",
            "erasure/test_erase_meanwhile.py::test_two_erasures_at_once_are_both_done",
        ),
        (
            "a_stand_in_of_an_erased_message_stays",
            "return replace(record.body, covered=rest, shown=self._kept(shown))",
            "return replace(record.body, covered=rest)",
            "erasure/test_scrub.py::test_every_kind_of_record erasure/test_erase.py::test_a_message_leaves_every_place",
        ),
        (
            "a_summary_keeps_what_was_erased",
            "if isinstance(body, Compacted) and scrub.covers(record.body):",
            "if isinstance(body, Compacted) and not scrub.erased_ids:",
            "erasure/test_erase.py::test_a_message_leaves_every_place",
        ),
        (
            "summaries_are_rewritten_under_the_newest_policy",
            "        if isinstance(body, PolicyChanged):\n            policy = body.policy\n",
            "        policy = [r.body.policy for r in records if isinstance(r.body, PolicyChanged)][-1]\n",
            "erasure/test_erase.py::test_summaries_that_have_nothing_of_it_stay_as_they_are",
        ),
        (
            "summaries_are_rewritten_under_the_first_policy",
            "        if isinstance(body, PolicyChanged):\n            policy = body.policy\n",
            "",
            "erasure/test_erase.py::test_summaries_that_have_nothing_of_it_stay_as_they_are",
        ),
        (
            "a_rewritten_summary_may_be_larger",
            "        most_tokens=ports.counter.count_text(body.summary.text),\n",
            "",
            "erasure/test_erase.py::test_summaries_that_have_nothing_of_it_stay_as_they_are",
        ),
        (
            "each_erasure_shrinks_every_summary",
            "rules=Policy.model_validate_json(policy),",
            "rules=Policy.model_validate_json(policy).model_copy(update={'summary_tokens': len(body.summary.text) // 4}),",
            "erasure/test_erase.py::test_summaries_that_have_nothing_of_it_stay_as_they_are",
        ),
        (
            "a_call_id_of_another_turn_is_erased_too",
            "callers |= {(record.turn_id, call.id): group for call in message.tool_calls}",
            "callers |= {(None, call.id): group for call in message.tool_calls}",
            "erasure/test_erase.py",
        ),
        (
            "forks_lose_messages_of_the_same_id",
            "if r.seq <= length and (",
            "if (",
            "erasure/test_erase.py::test_what_only_has_the_same_name_in_another_session_stays",
        ),
        (
            "forks_that_are_made_meanwhile_keep_it",
            "names = [name for name in fork_names if name not in known_names]",
            "names = [name for name in fork_names if name in known_names]",
            "erasure/test_erase_forks.py::test_a_fork_that_is_made_during_an_erasure",
        ),
        (
            "an_erased_message_stays_in_the_index",
            "unindexed = tuple(r.seq for r in changed if isinstance(r.body, Erased))",
            "unindexed = tuple(r.seq for r in changed if r.seq < 0)",
            "erasure/test_erase.py::test_a_message_leaves_every_place",
        ),
        (
            "a_snapshot_keeps_erased_messages",
            "            if i not in self.erased_ids\n",
            "            if i not in self.emptied\n",
            "erasure/test_scrub.py",
        ),
        (
            "old_system_prompts_are_erased_by_age",
            "if r.at_s < before_s and not i.startswith(PROMPT_ID)]",
            "if r.at_s < before_s]",
            "erasure/test_erase_sessions.py::test_retention_by_age",
        ),
        (
            "sections_quote_what_was_erased",
            "    erased_ids |= quoting_sections(records, erased_ids)\n",
            "",
            "erasure/test_erase.py::test_a_section_that_quotes_it_goes_too",
        ),
    ),
    *_of(
        "stores/memory.py",
        (
            "memory_appends_to_another_log",
            "!= [known_id]:\n                raise erased_meanwhile(key)",
            "!= [known_id] and not log.records:\n                raise erased_meanwhile(key)",
            "stores/test_store_suite.py::TestMemoryStore::test_known_id_guards_against_an_erasure",
        ),
        (
            "memory_lets_the_head_move",
            "if expect is not None and expect != len(log.records):",
            "if expect is not None and expect > len(log.records):",
            "stores/test_store_suite.py::TestMemoryStore::test_expect_guards_the_head",
        ),
        (
            "memory_takes_a_lease_from_its_holder",
            "if other != holder and until_s > now_s:",
            "if other != holder and until_s < now_s:",
            "stores/test_store_suite.py::TestMemoryStore::test_a_lease_has_one_holder",
        ),
        (
            "memory_releases_the_lease_of_another",
            'if self._leases.get((SessionKey(*key), name), ("", 0.0))[0] == holder:',
            "if (SessionKey(*key), name) in self._leases:",
            "stores/test_store_suite.py::TestMemoryStore::test_a_lease_has_one_holder",
        ),
        (
            "memory_erases_from_a_log_that_went_on",
            "if len(log.records) != rewrite.expect:",
            "if len(log.records) < rewrite.expect:",
            "stores/test_store_suite.py::TestMemoryStore::test_erase_does_nothing_once_a_log_has_grown",
        ),
        (
            "memory_keeps_the_length_of_erased_documents",
            "self.total_length -= self.documents.pop(seq, 0)",
            "self.total_length -= self.documents.pop(seq, 0) * 0",
            "stores/test_store_suite.py::TestMemoryStore::test_erase_rewrites_records_and_the_index",
        ),
        (
            "memory_numbers_begin_anew",
            "new_records(items, len(self.records), len(self.numbered))",
            "new_records(items, len(self.records), 0)",
            "erasure/test_erase.py::test_message_numbers_stay_after_an_erasure retrieval/test_archive.py",
        ),
    ),
    *_of(
        "stores/base.py",
        (
            "a_cancelled_append_is_left_alone",
            "            while not done.done():\n",
            "            while not done.done() and not work:\n",
            "stores/test_sql_store.py::test_a_cancelled_question_that_waited_for_a_lock_leaves_no_turn_behind",
        ),
    ),
    *_of(
        "stores/sql_tables.py",
        (
            "sql_appends_to_another_log",
            '    if known_id is not None and there.get(known_id, ("", 0))[1] != known:',
            "    if known_id is not None and head < known:",
            "stores/test_store_suite.py::TestSqlite::test_known_id_guards_against_an_erasure",
        ),
        (
            "sql_lets_the_head_move",
            "if expect is not None and expect != head and",
            "if expect is not None and expect > head and",
            "stores/test_store_suite.py::TestSqlite::test_expect_guards_the_head",
        ),
        (
            "sql_gives_up_at_the_first_lock",
            "if attempt == tries or not is_passing(error) or time.monotonic() > deadline_s:",
            "if attempt == 1 or not is_passing(error) or time.monotonic() > deadline_s:",
            "stores/test_store_faults.py::test_deadlocks_serialization_failures_and_shutdowns_are_retried",
        ),
        (
            "sql_forgets_its_snapshots",
            "default=snapshot)",
            "default=0)",
            "stores/test_store_suite.py::TestSqlite::test_snapshots",
        ),
        (
            "sql_numbers_begin_anew_after_an_erasure",
            "numbered = max((r.number for r in records), default=0) or numbered",
            "numbered = max((r.number for r in records), default=0)",
            "stores/test_store_suite.py::TestSqlite::test_messages_are_numbered",
        ),
        (
            "a_write_into_a_deleted_file_is_acknowledged",
            "if alone and file is not None and self._address.file != file:",
            "if alone and file is None and self._address.file != file:",
            "stores/test_store_faults.py::test_a_file_that_goes_while_it_is_written_acknowledges_nothing",
        ),
        (
            "a_closed_store_goes_on",
            "        if self._closed:\n            raise",
            "        if self._closed and self._busy:\n            raise",
            "stores/test_store_suite.py::TestSqlite::test_a_closed_store_says_so",
        ),
    ),
    *_of(
        "stores/sql_engine.py",
        (
            "sqlite_transactions_begin_as_readers",
            'begin = "BEGIN IMMEDIATE"',
            'begin = "BEGIN"',
            "engine/test_tracing.py::test_a_write_to_sqlite_waits_for_another_one_and_is_not_tried_again",
        ),
        (
            "a_failed_transaction_stays_open",
            "            connection.rollback()\n",
            "            pass\n",
            "stores/test_sql_store.py::test_a_refused_statement_undoes_the_whole_append",
        ),
        (
            "sqlite_does_not_sync",
            "'NORMAL' if provisional else address.synchronous}",
            "'OFF'}",
            "stores/test_store_durable.py",
        ),
        (
            "sqlite_syncs_no_reply",
            "'NORMAL' if provisional else address.synchronous}",
            "'NORMAL'}",
            "stores/test_store_durable.py",
        ),
        (
            "sqlite_syncs_each_question_by_itself",
            "'NORMAL' if provisional else address.synchronous}",
            "address.synchronous}",
            "stores/test_store_durable.py",
        ),
    ),
    *_of(
        "stores/sql_rows.py",
        (
            "sql_erases_from_a_log_that_went_on",
            "        if head != change.expect:\n",
            "        if head < change.expect:\n",
            "stores/test_store_suite.py::TestSqlite::test_erase_does_nothing_once_a_log_has_grown",
        ),
    ),
    *_of(
        "stores/sql_index.py",
        (
            "sql_leaves_erased_text_in_the_index",
            "        erased = frozenset(seqs)\n",
            "        erased = frozenset(seqs[:0])\n",
            "stores/test_store_suite.py::TestSqlite::test_erase_rewrites_records_and_the_index",
        ),
        (
            "sql_indexes_a_document_twice",
            "            del by_seq[hit[0]]\n",
            "            by_seq.pop(-hit[0], None)\n",
            "stores/test_store_suite.py::TestSqlite::test_postings",
        ),
        (
            "sql_reads_a_leaf_too_few",
            "                read = read[-1:]  # the lowest",
            "                read = read[:0]  # the lowest",
            "stores/test_search_index.py::test_it_holds_what_a_store_in_memory_holds",
        ),
        (
            "sql_stops_before_enough_hits",
            "if len(leaves) == limit and len(hits_by_term[term]) < newest:",
            "if len(leaves) > limit and len(hits_by_term[term]) < newest:",
            "stores/test_search_index.py::test_newest_hits_behind_leaves_that_an_erasure_emptied",
        ),
    ),
    *_of(
        "stores/sql_tables.py",
        (
            "sql_keeps_vectors_of_erased_messages",
            "data in vectors.items() if s in kept]",
            "data in vectors.items() if s in kept or s]",
            "retrieval/test_kept_vectors.py::test_an_erasure_removes_vectors",
        ),
        (
            "memory_takes_advisory_locks_where_there_are_none",
            "lock_rows=self._address.serializable",
            "lock_rows=False",
            "stores/test_statements.py::test_each_statement_names_owner_and_session",
        ),
        (
            "sql_leaves_vectors_at_an_erasure",
            "                    self._rows.each(connection, self._sql.drop_vectors_in, change.key, seqs)\n",
            "                    self._rows.each(connection, self._sql.drop_vectors_in, change.key, seqs[:0])\n",
            "retrieval/test_kept_vectors.py::test_an_erasure_removes_vectors",
        ),
    ),
    *_of(
        "retrieval/embeddings.py",
        (
            "embedders_are_not_told_apart",
            "strict=True)) < SAME",
            "strict=True)) < 9.0",
            "retrieval/test_kept_vectors.py::test_another_embedder_makes_them_anew",
        ),
        (
            "old_messages_are_not_embedded",
            "    first = max(0, vectors.filled_from - FILLED_RECORDS)\n",
            "    first = 0\n    vectors.filled_from = min(vectors.filled_from, FILLED_RECORDS)\n",
            "retrieval/test_kept_vectors.py::test_what_was_compacted_long_ago_follows_in_the_background",
        ),
        (
            "stored_vectors_are_read_in_part",
            "range(1, last + 1, STORED_RECORDS)",
            "range(1, last + 1, 2 * STORED_RECORDS)",
            "retrieval/test_kept_vectors.py::test_what_was_compacted_long_ago_follows_in_the_background",
        ),
        (
            "another_workers_vectors_are_not_read",
            "    if work.keeps:  # another worker may have been here\n",
            "    if False:\n",
            "retrieval/test_kept_vectors.py::test_another_worker_uses_what_one_has_embedded",
        ),
        (
            "private_keys_are_given_to_the_embedder",
            "parts_of(without_private_keys(message.text))",
            "parts_of(message.text)",
            "retrieval/test_semantic.py::test_a_private_key_is_not_given_to_the_embedder",
        ),
        (
            "vectors_of_another_embedder_are_used",
            "same = [n for n, (_, _, other) in stored.items() if _alike(probe, other)]",
            "same = [*stored]",
            "retrieval/test_kept_vectors.py::test_another_embedder_makes_them_anew",
        ),
    ),
    *_of(
        "history/passage_cache.py",
        (
            "passages_behind_many_visible_ones_are_not_found",
            "if len(ranked) >= limit or count >= len(chunks):",
            "if ranked is not None:",
            "retrieval/test_semantic.py::test_the_nearest_of_those_behind_many_visible_ones",
        ),
        (
            "a_changed_message_of_the_tail_is_found_by_its_old_words",
            "if messages.get(seq) is not message]:",
            "if seq not in messages]:",
            "retrieval/test_live_index.py",
        ),
    ),
    *_of(
        "stores/posting_leaves.py",
        (
            "a_leaf_keeps_a_hit_of_a_later_leaf",
            "        if at == len(first_keys) or leaf_key(term, each[-1][0]) < first_keys[at]:",
            "        if at == len(first_keys) or leaf_key(term, each[0][0]) < first_keys[at]:",
            "stores/test_search_index.py::test_hits_go_into_the_leaf_of_their_key",
        ),
        (
            "an_erased_term_stays_as_a_first_key",
            "    return (first_key and leaf_key(term, hits[0][0])), with_hits",
            "    return first_key, with_hits",
            "stores/test_search_index.py::test_no_erased_term_stays_as_the_key_of_a_leaf",
        ),
        (
            "the_first_hit_of_a_run_is_not_looked_up",
            "        if seq == first:\n            place = 0",
            "        if seq == first:\n            continue",
            "stores/test_search_index.py::test_wanted_hits_are_those_of_all",
        ),
        (
            "a_wanted_hit_has_the_count_of_another",
            "values[size + place] if many",
            "values[size] if many",
            "stores/test_search_index.py::test_wanted_hits_are_those_of_all",
        ),
        (
            "a_document_near_a_wanted_one_is_a_hit",
            "if at == size or values[at] != seq - first:",
            "if at == size:",
            "stores/test_search_index.py::test_wanted_hits_are_those_of_all",
        ),
    ),
    *_of(
        "history/posting_cache.py",
        (
            "hits_of_messages_that_come_late_are_out_of_order",
            "LiveIndex(hits if in_order else",
            "LiveIndex(hits if hits else",
            "retrieval/test_live_index.py",
        ),
        (
            "a_message_that_left_the_view_keeps_its_length",
            "for seq, length in self.lengths.items() if seq not in seqs}",
            "for seq, length in self.lengths.items()}",
            "retrieval/test_live_index.py",
        ),
    ),
    *_of(
        "stores/sql.py",
        (
            "creation_takes_advisory_locks_where_there_are_none",
            "by_row=self._address.serializable",
            "by_row=False",
            "stores/test_statements.py::test_each_statement_names_owner_and_session",
        ),
        (
            "a_table_that_another_process_makes_is_an_error",
            "not in MADE_MEANWHILE:",
            "not in ():",
            "stores/test_serializable.py::test_made_by_many_at_once",
        ),
    ),
    *_of(
        "stores/sql_engine.py",
        (
            "serializable_transactions_are_read_committed",
            "'SERIALIZABLE' if address.serializable",
            "'SERIALIZABLE' if address.proxied",
            "stores/test_statements.py::test_each_statement_names_owner_and_session",
        ),
    ),
    *_of(
        "stores/sql_schema.py",
        (
            "sql_takes_a_lease_from_its_holder",
            "WHERE ctxfold_leases.until_s <= {now} OR",
            "WHERE ctxfold_leases.until_s > {now} OR",
            "stores/test_store_suite.py::TestSqlite::test_a_lease_has_one_holder",
        ),
        (
            "a_search_goes_by_the_owner_of_another_table",
            "WHERE p.owner = %s AND p.session = s.session AND p.first_key <= %s",
            "WHERE p.owner = s.owner AND %s <> '' AND p.session = s.session AND p.first_key <= %s",
            "stores/test_statements.py::test_each_statement_names_owner_and_session",
        ),
        (
            "records_are_found_by_their_session_alone",
            '_MINE_C = "owner{owner_c} = ? AND session{c} = ?"',
            '_MINE_C = "owner{owner_c} >= ? AND session{c} = ?"',
            "stores/test_statements.py::test_each_statement_names_owner_and_session",
        ),
        (
            "sql_releases_the_lease_of_another",
            "WHERE {_MINE} AND name = ? AND holder = ?",
            "WHERE {_MINE} AND name = ? AND holder <= ?",
            "stores/test_store_suite.py::TestSqlite::test_a_lease_has_one_holder",
        ),
    ),
    *_of(
        "compaction/transcript.py",
        (
            "every_message_element_is_a_tag_of_the_transcript",
            r"""<message role="\w+">|""",
            "<message[^>]*>|",
            "compaction/test_summaries.py::test_elements_of_the_same_name_stay_in_a_summary",
        ),
        (
            "copied_tags_stay",
            """return _TAG_LINE.sub("", text).strip()""",
            "return text.strip()",
            "compaction/test_summaries.py::test_markup_of_the_transcript_that_a_model_copies_is_left_out",
        ),
    ),
    *_of(
        "policy/settings.py",
        (
            "a_summary_takes_a_fifth_of_every_budget",
            "max(SMALL_SUMMARY_TOKENS, 2 * (budget_tokens - SMALL_TOKENS) // 5)",
            "max(budget_tokens // 5, 2 * (budget_tokens - SMALL_TOKENS) // 5)",
            "engine/test_budget.py::test_a_summary_leaves_recall_its_room_in_a_small_window",
        ),
    ),
    *_of(
        "backends/http.py",
        (
            "the_thread_for_deadlines_sleeps_until_the_deadline",
            "min([now_s + LINGER_S, *(g.deadline_s for g in self._guards)])",
            "min([g.deadline_s for g in self._guards] or [now_s + LINGER_S])",
            "wire/test_connection.py::test_the_thread_for_deadlines_ends_with_the_calls",
        ),
        (
            "a_forked_process_uses_the_connections_of_its_parent",
            "        if self._process != os.getpid():\n            self._leave_parent()\n",
            "",
            "wire/test_connection.py::test_a_forked_process_has_connections_and_deadlines_of_its_own",
        ),
        (
            "connections_of_a_collected_model_stay_open",
            "        finalize(self, _close_lanes, self._idle).atexit = False\n",
            "        finalize(self, _close_lanes, ()).atexit = False\n",
            "wire/test_connection.py::test_a_backend_that_nobody_closes_leaves_no_connection",
        ),
    ),
    *_of(
        "backends/transport.py",
        (
            "a_dropped_idle_connection_is_an_error",
            "                if fresh:\n                    raise\n",
            "                if not fresh:\n                    raise\n",
            "wire/test_connection.py::test_a_dropped_idle_connection_is_tried_once_more_on_a_new_one",
        ),
        (
            "one_retry_too_few",
            "attempt, fresh = 0, False",
            "attempt, fresh = 1, False",
            "wire/test_connection.py::test_gives_up_after_max_retries",
        ),
        (
            "an_answer_is_retried_after_its_first_event",
            "return None if self.started else self._parser.error",
            "return self._parser.error",
            "wire/test_connection.py::test_what_arrived_with_a_failure_is_given_first",
        ),
        (
            "a_finished_answer_fails_by_its_epilogue",
            "        if self._parser.complete:\n",
            "        if self._parser.complete and self._drained:\n",
            "wire/test_connection.py::test_an_answer_that_only_lacks_its_epilogue_is_whole",
        ),
        (
            "comments_keep_the_first_event_waiting",
            "read = self.next_read if self.started else Read(",
            "read = self.next_read if not self.started else Read(",
            "wire/test_connection.py::test_first_event_deadline_counts_through_comments",
        ),
        (
            "an_error_status_is_read_as_an_answer",
            "    if 200 <= head.status < 300:\n",
            "    if 200 <= head.status < 500:\n",
            "wire/test_connection.py::test_the_key_is_never_shown",
        ),
    ),
    *_of(
        "backends/transport.py",
        (
            "a_long_retry_after_is_waited_for",
            "if error.retry_after_s <= self.max_retry_after_s else None",
            "if error.retry_after_s <= 1e9 else None",
            "wire/test_connection.py::test_retry_after_is_waited_for_or_not_waited_for_at_all backends/test_retry.py",
        ),
        (
            "one_retry_too_many",
            "or attempt >= self.max_retries:",
            "or attempt > self.max_retries:",
            "wire/test_connection.py::test_gives_up_after_max_retries",
        ),
        (
            "what_cannot_succeed_is_retried",
            "if not error.retryable or attempt",
            "if attempt",
            "wire/test_connection.py::test_what_cannot_succeed_is_not_retried",
        ),
    ),
    *_of(
        "backends/openai_responses/request.py",
        (
            "a_broken_reply_sends_reasoning_alone",
            'if message.finish_reason == "aborted":',
            'if message.finish_reason == "":',
            "wire/test_model_switch.py",
        ),
        (
            "reasoning_goes_without_the_item_that_followed_it",
            "torn = bool(others) and (others[0].whole is None or others[0].after not in {None, *ids})",
            "torn = False",
            "wire/test_responses_replies.py::test_a_rewritten_turn_sends_neither_its_reasoning_nor_an_id",
        ),
        (
            "an_item_keeps_its_id_without_its_reasoning",
            "item = entry.whole if entry.after is None or entry.after in reasoning_ids else entry.bare",
            "item = entry.whole",
            "wire/test_responses_replies.py::test_without_its_reasoning_an_item_has_no_id",
        ),
        (
            "a_call_before_a_compaction_is_dropped",
            'if any(item.get("type") == "function_call" or client_call(item) is not None for item in run[:place]):',
            "if False:",
            "wire/test_responses_replies.py::test_a_call_before_a_compaction_stays_with_its_result",
        ),
    ),
    *_of(
        "backends/profile.py",
        (
            "a_providers_summary_goes_to_another_model",
            "if kept is None or (kept.wire, kept.provider, kept.model) != (profile.wire, profile.name, model):",
            "if kept is None:",
            "wire/test_provider_compaction.py::test_another_model_and_another_wire_read_our_own_summary",
        ),
        (
            "a_refused_summary_of_the_provider_goes_again",
            "kept = ProviderSummary.of(messages[place]) if place >= refused_before else None",
            "kept = ProviderSummary.of(messages[place]) if place >= 0 else None",
            "wire/test_provider_compaction.py::test_a_block_that_the_service_refuses_gives_way_to_our_own_summary",
        ),
    ),
    *_of(
        "compaction/compact.py",
        (
            "a_summariser_that_timed_out_is_asked_by_every_compaction",
            "    if summary.timed_out:\n",
            "    if False:\n",
            "compaction/test_summarize.py::test_a_summariser_that_timed_out_is_not_asked_at_once_again",
        ),
        (
            "a_compaction_on_demand_does_without_a_summariser_that_timed_out",
            ' and case.facts.occasion != "on_demand":\n        summary = ',
            ":\n        summary = ",
            "compaction/test_summarize.py::test_a_summariser_that_timed_out_is_not_asked_at_once_again",
        ),
        (
            "a_provider_is_asked_below_its_least_size",
            "if own_size < least:",
            "if False:",
            "wire/test_provider_compaction.py::test_where_there_is_no_such_summary_the_ladder_writes_it",
        ),
        (
            "a_failed_summary_of_the_provider_is_not_named",
            "if problem is None else replace(summary, problems=(problem, *summary.problems))",
            "if problem is None else summary",
            "wire/test_provider_compaction.py::test_where_there_is_no_such_summary_the_ladder_writes_it",
        ),
        (
            "a_summary_of_the_provider_costs_nothing",
            "    open_session.unbooked_usage += usage\n",
            "",
            "wire/test_provider_compaction.py::test_forty_turns_over_three_summaries_then_the_service_is_gone",
        ),
    ),
    *_of(
        "backends/anthropic/request.py",
        (
            "a_round_of_another_model_goes_on_with_a_budget",
            "return began is not None and _holds(",
            "return began is None and _holds(",
            "wire/test_model_switch.py",
        ),
        (
            "a_round_begins_with_any_row_of_the_user",
            ' and not _holds(row, "tool_result", "toolResult")\n',
            "\n",
            "wire/test_model_switch.py",
        ),
        (
            "what_a_compaction_stands_for_is_sent_again",
            "            result.rows.clear()\n",
            "",
            "wire/test_provider_compaction.py::test_what_a_summary_within_a_reply_took_is_in_the_sessions_sums",
        ),
    ),
    *_of(
        "backends/anthropic/backend.py",
        (
            "a_compaction_block_goes_without_its_beta",
            "            kinds.append(COMPACT)  # its blocks are known under the same name\n",
            "            pass\n",
            "wire/test_provider_compaction.py::test_forty_turns_over_three_summaries_then_the_service_is_gone",
        ),
    ),
    *_of(
        "engine/erase.py",
        (
            "an_erased_message_stays_in_a_later_compaction_block",
            "message=without_compactions(message)",
            "message=message",
            "wire/test_provider_compaction.py::test_a_block_within_a_reply_stands_for_what_was_before_until_that_is_erased",
        ),
    ),
    *_of(
        "engine/turn.py",
        (
            "passages_of_a_memory_take_the_room_of_tool_rounds",
            " + min(sum(rounds), budget_tokens // ROUNDS_PART)\n",
            "\n",
            "llamaindex/test_memory_beside_llm.py::test_passages_of_a_memory_give_way_to_tools_and_rounds",
        ),
        (
            "passages_of_a_memory_that_do_not_fit_are_sent",
            "with_passages(options, budget_tokens - taken, counter.count_text)",
            "with_passages(options, budget_tokens, counter.count_text)",
            "llamaindex/test_memory_beside_llm.py::test_passages_of_a_memory_give_way_to_tools_and_rounds",
        ),
        (
            "what_the_service_spent_beside_a_reply_is_not_stored",
            "        learnt.append(draft(ports, OutputsSummarised((), usage=reply.billed - (message.usage or Usage()))))\n",
            "        pass\n",
            "wire/test_provider_compaction.py::test_what_a_summary_within_a_reply_took_is_in_the_sessions_sums",
        ),
        (
            "a_request_that_fails_takes_a_question_along_that_another_asks",
            "not (others_wait or joined or",
            "not (joined or",
            "llamaindex/test_llm_agents.py::test_a_question_that_two_requests_ask_stays_when_the_first_one_fails",
        ),
        (
            "a_request_that_fails_takes_a_question_along_that_another_process_has_added",
            "not (others_wait or joined or",
            "not (others_wait or",
            "llamaindex/test_overlapping_requests.py::test_a_cancelled_request_leaves_the_question_that_another_process_has_added",
        ),
        (
            "the_second_reply_of_two_processes_is_lost",
            "    if attempt.listed:\n",
            "    if False:\n",
            "llamaindex/test_overlapping_requests.py::test_two_processes_answer_one_question_and_both_replies_stay",
        ),
        (
            "a_reply_is_lost_whose_turn_was_closed_for_its_age",
            "            yield from append_decided(open_session, drafts, ports)\n",
            "            raise\n",
            "engine/test_journal.py::test_a_reply_stays_when_its_turn_was_closed_meanwhile",
        ),
        (
            "the_reply_of_a_cancelled_request_keeps_its_turn_open",
            "    attempt.reply_id = message.id\n",
            "",
            "engine/test_exchange.py::test_a_cancel_right_after_a_reply_with_tool_calls_was_stored",
        ),
        (
            "a_turn_that_another_request_has_gone_back_behind_loses_its_reply",
            "        take_over(open_session, (new.turn_id,), attempt.new_turn)\n",
            "",
            "llamaindex/test_llm_agents.py::test_a_request_keeps_its_reply_when_another_goes_back_behind_its_messages",
        ),
        (
            "a_reply_loses_its_question_with_the_request_that_went_back_behind_it",
            "(*open_session.in_flight, *open_session.taken_over.values())",
            "open_session.in_flight",
            "llamaindex/test_llm_agents.py::test_a_reply_keeps_its_question_when_the_other_request_fails",
        ),
        (
            "results_that_are_asked_about_again_are_sent_with_what_was_said_since",
            'or (new == Reconciled(()) and asked.role == "tool"):',
            "or False:",
            "llamaindex/test_memory_beside_llm.py::test_results_are_asked_about_again_without_what_was_said_since",
        ),
        (
            "the_first_of_two_answers_in_a_workflow_is_lost",
            "(turn_input.keeps_answers and new.superseded) or",
            "False or",
            "llamaindex/test_memory_beside_llm.py::test_requests_of_a_workflow_that_ask_the_same_both_stay",
        ),
        (
            "other_words_of_a_question_take_no_room",
            " + max(0, reworded_view.tokens - stage.view.tokens)",
            "",
            "llamaindex/test_memory_beside_llm.py::test_what_an_agent_writes_into_its_question_takes_room",
        ),
    ),
    *_of(
        "backends/http_backend.py",
        (
            "a_key_that_a_service_quotes_stays_in_its_error",
            "            text = text.replace(secret, HIDDEN)\n",
            "            pass\n",
            "wire/test_secrets.py::test_no_credential_shows_on_any_wire",
        ),
    ),
    *_of(
        "backends/openai_responses/parse.py",
        (
            "the_stub_of_encrypted_reasoning_goes_back",
            'final.pop("encrypted_content", None)',
            "pass",
            "wire/test_responses_replies.py::test_without_an_end_and_an_output_a_stub_does_not_go_back",
        ),
        (
            "a_call_does_not_wait_for_the_one_before_it",
            "return item.index <= self._next_index or item.kind in _LIVE",
            "return True",
            "wire/test_responses_replies.py::test_calls_begun_in_another_order_come_in_that_of_the_output",
        ),
    ),
    *_of(
        "stream.py",
        (
            "half_a_call_is_kept",
            "if cut_short and not (call.name and json_object(arguments) is not None):",
            "if cut_short and not call.name:",
            "backends/test_stream.py::test_an_incomplete_call_is_never_kept",
        ),
        (
            "a_signature_does_not_end_its_block",
            "return self.signature is not None or self.sealed",
            "return self.sealed",
            "backends/test_stream.py::test_signatures_end_their_reasoning_block",
        ),
        (
            "a_call_is_found_by_its_index_alone",
            "self._by_id.get(delta.id)",
            "self._by_index.get(delta.index or 0)",
            "backends/test_stream.py::test_tool_call_quirks",
        ),
        (
            "another_name_goes_on_with_the_call",
            "    if delta.name != call.name:\n        return True\n",
            "",
            "backends/test_stream.py::test_tool_call_quirks",
        ),
        (
            "a_whole_message_is_taken_as_it_is",
            "if whole is None or whole.tool_calls != calls:",
            "if whole is None:",
            "backends/test_stream.py::test_a_whole_message_that_lacks_what_was_streamed_is_not_taken",
        ),
    ),
    *_of(
        "compaction/commit.py",
        (
            "originals_of_excerpts_are_indexed_again",
            "if e.seq not in indexed_seqs]",
            "]",
            "retrieval/test_long_outputs.py::test_a_compaction_does_not_index_the_original_of_an_excerpt_again",
        ),
        (
            "a_summary_of_equal_size_is_accepted",
            "(size := ports.counter.count(message)) >= source_tokens:",
            "(size := ports.counter.count(message)) > source_tokens:",
            "compaction/test_compaction.py compaction/test_on_demand.py",
        ),
        (
            "a_compaction_covers_what_was_edited_meanwhile",
            "if not _span_unchanged(open_session, plan, before):",
            "if not plan.strategy:",
            "erasure/test_erase_meanwhile.py::test_a_summary_under_way_is_not_written_from_erased_text",
        ),
    ),
    *_of(
        "compaction/compact.py",
        (
            "the_turns_since_a_summary_count_one_more",
            "turns = state.turns - state.summary_turn if state.summary_turn >= 0 else",
            "turns = state.turns - state.summary_turn + 1 if state.summary_turn >= 0 else",
            "compaction/test_trigger.py compaction/test_compaction.py",
        ),
    ),
    *_of(
        "compaction/built_in.py",
        (
            "the_cooldown_is_one_turn_longer",
            "if case.fits and turns < cooldown:",
            "if case.fits and turns <= cooldown:",
            "compaction/test_trigger.py compaction/test_compaction.py",
        ),
    ),
    *_of(
        "lru.py",
        (
            "the_newest_session_leaves_the_cache",
            "oldest = list(islice(self._entries, too_many))",
            "oldest = list(islice(reversed(self._entries), too_many))",
            "engine/test_lru.py engine/test_journal.py",
        ),
        (
            "a_session_in_use_leaves_the_cache",
            "if not self._in_use(self._entries[key])",
            "if self._in_use",
            "engine/test_max_sessions.py",
        ),
        (
            "a_use_does_not_count",
            "                return None\n            self._entries.move_to_end(key)\n",
            "                return None\n",
            "engine/test_lru.py engine/test_journal.py",
        ),
    ),
    *_of(
        "../../langchain_ctx/summarizer.py",
        (
            "a_thinking_summariser_is_limited",
            " and not may_think(model)",
            "",
            "langchain/test_summarizer.py::test_the_limit_of_a_summary_does_not_cut_a_models_thinking",
        ),
    ),
    *_of(
        "../../langchain_ctx/session_routing.py",
        (
            "a_client_names_the_session_of_a_run",
            "        if _is_run(configurable):\n",
            "        if False:\n",
            "langchain/test_client_names.py::test_h1_the_programs_session_wins_in_a_run",
        ),
        (
            "a_client_names_the_session_of_a_thread",
            """        if "thread_id" in configurable:\n            return configurable["thread_id"]\n""",
            "",
            "langchain/test_chat_sessions.py::test_the_config_names_session_and_owner",
        ),
        (
            "a_client_names_the_owner_of_a_run",
            'return self.owner if is_in_graph(configurable) else configurable.get("owner", self.owner)',
            'return configurable.get("owner", self.owner)',
            "langchain/test_client_names.py::test_h1_an_owner_is_read_under_the_programs_key_alone",
        ),
        (
            "a_run_without_the_owners_key_has_the_default_owner",
            "if configurable.get(self.owner_key) is None:",
            "if False:",
            "langchain/test_client_names.py::test_h1_an_owner_is_read_under_the_programs_key_alone",
        ),
        (
            "a_history_takes_names_from_the_config_of_a_run",
            "for key, name in names.items() if is_in_graph(configurable) else ():",
            "for key, name in ():",
            "langchain/test_client_names.py::test_h1_a_history_refuses_names_from_the_config_of_a_run",
        ),
    ),
    *_of(
        "engine/attach.py",
        (
            "any_cursor_is_believed",
            "    if is_own(cursor.session, root.session):\n        return True\n    records = yield",
            "    if cursor is not None:\n        return True\n    records = yield",
            "langchain/test_client_names.py::test_h1_h5_a_cursor_is_believed_only_for_its_session",
        ),
        (
            "a_copied_cursor_is_believed_without_its_list",
            "return all(m.id in positions and _says(m, incoming.message(positions[m.id])) for m in said)",
            "return True",
            "langchain/test_client_names.py::test_h1_h5_a_cursor_is_believed_only_for_its_session",
        ),
        (
            "a_deleted_thread_goes_on",
            "    if not start.list_decides:\n        return False\n",
            "    if True:\n        return False\n",
            "langchain/test_deleted_threads.py::test_h4_a_deleted_threads_id_used_again_is_a_new_conversation",
        ),
    ),
    *_of(
        "history/diff.py",
        (
            "a_repeated_id_stays",
            "        if own_id in known:\n",
            "        if not own_id:\n",
            "langchain/test_list_ids.py::test_l2_a_rewritten_state_with_an_id_twice_goes_on",
        ),
    ),
    *_of(
        "engine/turn.py",
        (
            "a_limit_belongs_to_the_model_that_was_expected",
            "            attempt.model = asked\n",
            "            pass\n",
            "langchain/test_model_limits.py::test_l8_a_limit_belongs_to_the_model_that_answered",
        ),
    ),
    *_of(
        "../../langchain_ctx/callbacks.py",
        (
            "a_handler_that_langchain_adds_is_hidden",
            "return handler if takes_none or added else _WithoutTokens(handler)",
            "return _WithoutTokens(handler)",
            "langchain/test_summary_usage.py::test_h3_each_summary_is_counted_and_traced_once",
        ),
    ),
    *_of(
        "../../langchain_ctx/message_lists.py",
        (
            "marks_of_a_prompt_are_dropped",
            "own = {prompt_text(m): m for m in given if _is_more_than_text(m.content)}",
            "own = dict[str, BaseMessage]()",
            "langchain/test_system_prompts.py::test_l9_cache_marks_of_leading_system_messages_reach_the_wire",
        ),
        (
            "a_round_that_is_known_loses_its_notes",
            "start = _round_start(messages, min(first, len(messages) - 1))",
            "start = first",
            "langchain/test_node_lists.py::test_a_call_whose_result_was_lost_at_a_handoff_has_a_note",
        ),
        (
            "lost_results_have_no_note",
            "complete += [_lost(call, message.id) for call in lost]",
            "pass",
            "langchain/test_places.py::test_a_handoff_among_parallel_calls",
        ),
        (
            "lost_results_before_an_answer_have_no_note",
            'if results and (end == len(messages) or messages[end].role == "assistant"):',
            "if results and end == len(messages):",
            "langchain/test_places.py::test_a_handoff_among_parallel_calls",
        ),
    ),
    *_of(
        "adapters/refused_reasoning.py",
        (
            "refused_thoughts_are_sent_again",
            "self._refused.update(dict.fromkeys(refused, True))",
            "pass",
            "faces/test_bound_thoughts.py",
        ),
        (
            "a_list_without_thoughts_is_sent_twice",
            'error.kind != "reasoning_replay" or not may_leave_out or not refused',
            'error.kind != "reasoning_replay" or not may_leave_out',
            "faces/test_bound_thoughts.py::test_a_second_refusal_is_the_callers_to_see",
        ),
        (
            "a_refusal_holds_in_every_list",
            'before = _digest(message, before if binds else "")',
            'before = _digest(message, "")',
            "faces/test_bound_thoughts.py::test_a_refusal_holds_for_the_list_that_was_refused",
        ),
        (
            "a_refusal_before_another_list_is_forgotten",
            'before = _digest(message, before if binds else "")',
            "before = _digest(message, before)",
            "faces/test_bound_thoughts.py::test_what_refuses_whatever_stands_before_is_asked_once",
        ),
        (
            "what_a_request_leaves_out_comes_back",
            "if before <= request.refused_before:",
            "if not before:",
            "faces/test_bound_thoughts.py::test_what_a_request_leaves_out_itself_stays_out",
        ),
    ),
    *_of(
        "backends/errors.py",
        (
            "refused_reasoning_of_a_client_without_a_status_is_any_failure",
            'if classified.kind in ("context_overflow", "reasoning_replay"):',
            'if classified.kind == "context_overflow":',
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
    ),
    *_of(
        "../../langchain_ctx/active_model.py",
        (
            "a_callers_model_says_nothing_of_its_service",
            "return BackendCapabilities() if caller is None else caller.capabilities",
            "return BackendCapabilities()",
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
    ),
    *_of(
        "connect.py",
        (
            "a_newer_model_is_never_asked_again",
            "reasoning_optional=bound or row.reasoning_out.optional",
            "reasoning_optional=row.reasoning_out.optional",
            "faces/test_bound_thoughts.py::test_a_model_that_thinks_although_nobody_says_so_goes_on",
        ),
    ),
    *_of(
        "../../langchain_ctx/reasoning.py",
        (
            "thoughts_that_lost_their_beginning_are_sent",
            "return max(request.refused_before, request.unbound_before if",
            "return max(request.refused_before, 0 if",
            "faces/test_bound_thoughts.py::test_an_agent_of_langchain_goes_on_after_compactions",
        ),
        (
            "a_model_sends_what_was_refused",
            "return max(request.refused_before, request.unbound_before if",
            "return max(0, request.unbound_before if",
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
        (
            "a_model_that_does_not_think_binds_its_thoughts",
            "return reasoning_rules(service[0], name, thinks=thinks, wire=service[1])",
            "return reasoning_rules(service[0], name, thinks=True, wire=service[1])",
            "faces/test_bound_thoughts.py::test_a_model_that_does_not_think_is_shown_all_that_recall_finds",
        ),
        (
            "answers_of_responses_need_their_reasoning",
            "_RESPONSES = BackendCapabilities(reasoning_optional=True)",
            "_RESPONSES = BackendCapabilities()",
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
    ),
    *_of(
        "backends/profile.py",
        (
            "a_model_that_thinks_can_be_forced",
            'return not thinks(self, thinking) if forced == "not_while_thinking" else forced',
            "return bool(forced)",
            "langchain/test_chat_features.py::test_a_model_that_cannot_be_forced_chooses_between_tools_and_is_refused_one",
        ),
    ),
    *_of(
        "../../langchain_ctx/chat_calls.py",
        (
            "any_tool_is_a_demand",
            'if forced == "required" and row is not None',
            'if forced == "none" and row is not None',
            "langchain/test_chat_features.py::test_a_model_that_cannot_be_forced_chooses_between_tools_and_is_refused_one",
        ),
    ),
    *_of(
        "../../langchain_ctx/refusals.py",
        (
            "a_reply_without_the_call_is_none",
            "    if not calls:\n",
            "    if False:\n",
            "langchain/test_chat_features.py::test_structured_output_of_a_model_that_cannot_be_forced",
        ),
    ),
    *_of(
        "../../langchain_ctx/models.py",
        (
            "an_agent_forces_models_that_cannot_be",
            "rules.forced_tool_choice is False and row.wire in _SCHEMA_WIRES",
            "False",
            "langchain/test_chat_features.py::test_an_agent_has_the_provider_enforce_the_schema_of_a_model_that_cannot_be_forced",
        ),
    ),
    *_of(
        "../../langchain_ctx/tools.py",
        (
            "an_object_with_any_keys_is_closed",
            'if not _is_object(schema) or schema.get("properties") or others is False:',
            "if True:",
            "langchain/test_wire_agents.py::test_a_field_with_any_keys_is_refused_where_the_service_closes_objects",
        ),
        (
            "a_class_without_fields_has_any_keys",
            'others = schema.get("additionalProperties", "properties" not in schema)',
            'others = schema.get("additionalProperties", True)',
            "langchain/test_wire_agents.py::test_a_class_without_fields_is_closed_as_it_is",
        ),
        (
            "a_field_that_takes_no_value_takes_any",
            "fields = {key: one for key, one in value.items() if one is not False}",
            "fields = dict(value)",
            "langchain/test_wire_agents.py::test_a_schema_may_have_booleans_in_place_of_schemas",
        ),
        (
            "a_variant_that_takes_no_value_takes_any",
            "[_closed(one, place) for one in value if one is not False]",
            "[_closed(one, place) for one in value]",
            "langchain/test_wire_agents.py::test_a_schema_may_have_booleans_in_place_of_schemas",
        ),
    ),
    *_of(
        "../../langchain_ctx/chat_model.py",
        (
            "a_schema_is_a_demand_that_some_models_refuse",
            'if method == "function_calling" and not may_force(',
            "if False and not may_force(",
            "langchain/test_chat_features.py::test_structured_output_of_a_model_that_cannot_be_forced",
        ),
        (
            "a_strict_schema_is_looked_at_once_its_objects_are_closed",
            "call_settings(schema, method, strict=None))",
            "settings)",
            "langchain/test_wire_agents.py::test_a_field_with_any_keys_is_refused_where_the_service_closes_objects",
        ),
        (
            "a_schema_is_refused_at_the_first_call_only",
            'if row is not None and method == "json_schema":',
            "if False:",
            "langchain/test_wire_agents.py::test_a_field_with_any_keys_is_refused_where_the_service_closes_objects",
        ),
    ),
    *_of(
        "../../langchain_ctx/content.py",
        (
            "items_keep_ids_that_demand_their_reasoning",
            'return place[0] in ("t", "c") or (place[0] == "x" and place[1].get("type") == "function_call")',
            "return False",
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
        (
            "sealed_thoughts_stay",
            'if p[0] != "r" and not (p[0] == "x" and _original(p[1]).get("type") in _THOUGHTS)]',
            'if p[0] != "r"]',
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
        (
            "sealed_thoughts_stay_in_blocks_of_version_v1",
            'if block.get("type") == "non_standard" and isinstance(value, dict) else block',
            "if False else block",
            "faces/test_bound_thoughts.py::test_a_sealed_thought_in_langchains_own_blocks_is_left_out_when_it_is_refused",
        ),
    ),
    *_of(
        "../../langchain_ctx/messages.py",
        (
            "signatures_of_calls_stay",
            "if k not in _BOUND_KWARGS}",
            "if k}",
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
    ),
    *_of(
        "../../langchain_ctx/inner_model.py",
        (
            "a_converted_window_keeps_refused_thoughts",
            "same = min(same, reasoning_from, last.reasoning_from)",
            "pass",
            "faces/test_bound_thoughts.py::test_thoughts_that_the_service_refused_stay_out_of_later_requests",
        ),
        (
            "a_message_keeps_the_id_of_an_item_that_demands_its_reasoning",
            'if message.id.startswith("msg_"):',
            "if False:",
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
        (
            "an_answer_of_thoughts_alone_is_sent_empty",
            "return [sent] if sent.content or message.tool_calls else []",
            "return [sent]",
            "faces/test_bound_thoughts.py::test_an_answer_of_thoughts_alone_is_left_out_with_them",
        ),
    ),
    *_of(
        "../../langchain_ctx/node.py",
        (
            "a_node_sends_thoughts_of_earlier_turns",
            "accepted = max(asks, request.unbound_before)",
            "accepted = request.unbound_before",
            "faces/test_bound_thoughts.py::test_a_node_sends_the_thoughts_of_the_round_and_those_of_other_models",
        ),
        (
            "a_node_sends_no_thoughts_of_older_models",
            "thinks=index >= accepted or not binds_thoughts(message.model)",
            "thinks=index >= accepted",
            "faces/test_bound_thoughts.py::test_a_node_sends_the_thoughts_of_the_round_and_those_of_other_models",
        ),
    ),
    *_of(
        "../../langchain_ctx/history.py",
        (
            "a_compacted_history_shows_bound_thoughts",
            "without_thoughts(m) if binds_thoughts(m.model) else m for m",
            "m for m",
            "faces/test_bound_thoughts.py::test_what_does_not_know_its_model_leaves_out_thoughts_of_models_that_bind_them",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/backend.py",
        (
            "an_llm_is_sent_thoughts_that_lost_their_beginning",
            "max(request.refused_before, request.unbound_before if binds else 0)",
            "request.refused_before",
            "faces/test_bound_thoughts.py::test_a_session_over_an_llm_of_llamaindex_is_refused_nothing",
        ),
        (
            "an_llm_of_anthropics_package_tells_nothing",
            "    if service is None:\n",
            "    if True:\n",
            "faces/test_bound_thoughts.py::test_an_llm_of_anthropics_package_goes_on_after_compactions",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/memory.py",
        (
            "a_small_window_leaves_no_room_for_documents",
            "documents = min(documents, room // 2)",
            "documents = documents if documents <= room // 2 else 0",
            "llamaindex/test_engines.py::test_a_full_memory_of_a_small_window_leaves_half_of_it",
        ),
        (
            "a_field_of_a_model_is_no_memory",
            'isinstance(data, dict) and "engine" in data',
            "False",
            "llamaindex/test_serialise.py::test_the_typed_state_of_a_workflow_holds_a_memory",
        ),
        (
            "documents_take_the_room_of_passages_where_no_engine_works",
            "documents = documents if documents >= LEAST_DOCUMENTS_TOKENS else 0",
            "pass",
            "llamaindex/test_stock_ways.py::test_nothing_of_ours_stands_in_a_prompt",
        ),
        (
            "a_question_behind_an_unanswered_one_is_taken_for_it",
            "return asked.split() != newest.text.split()",
            "return False",
            "llamaindex/test_engines.py::test_a_question_that_was_left_without_an_answer_leaves_room_too",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/backend.py",
        (
            "the_service_behind_an_llm_is_not_known",
            "if not _is_ours(self.llm):\n            return",
            "if True:\n            return",
            "faces/test_bound_thoughts.py::test_an_agent_goes_on_after_compactions",
        ),
        (
            "thinking_uses_up_a_summary",
            "replace(_rules_of(self.llm), sparing=_without_limit)",
            "BackendCapabilities()",
            "llamaindex/test_backend.py::test_a_summary_has_no_limit_that_thinking_would_use_up",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/wrapper.py",
        (
            "an_llm_is_made_from_a_dict_without_its_sessions",
            "def from_dict(cls",
            "def read_dict(cls",
            "llamaindex/test_mistakes.py::test_an_llm_with_a_context_is_made_from_no_dict",
        ),
        (
            "a_run_keeps_the_prompt_of_another_agent",
            "prompts = self.prompts or ()",
            "prompts = self.prompts",
            "llamaindex/test_wrapped.py::test_an_agent_without_a_prompt_is_not_given_that_of_the_one_before",
        ),
        (
            "a_run_takes_a_summary_for_what_the_user_said",
            "if run_key.session is not None:\n            # the session has",
            "if True:\n            # the session has",
            "llamaindex/test_memory_beside_llm.py::test_a_run_goes_on_from_the_summary_of_a_memory",
        ),
    ),
    *_of(
        "engine/retention.py",
        (
            "answered_turns_count_as_open_for_retention",
            "closed.add(record.turn_id)",
            "pass",
            "erasure/test_retention.py::test_turns_that_a_model_has_answered_are_beyond_the_limits_too",
        ),
    ),
    *_of(
        "engine/archive.py",
        (
            "a_call_is_looked_for_in_one_page_of_the_log",
            "before -= CHUNK - 1",
            "before = 0",
            "retrieval/test_archive.py::test_restore_finds_the_call_of_a_result_behind_many_records",
        ),
    ),
    *_of(
        "backends/gemini/jsonl.py",
        (
            "calls_of_one_function_share_an_id",
            'f"{name}_{names[name]}"',
            "name",
            "wire/test_native_jsonl.py::test_calls_of_gemini_without_ids_find_their_responses",
        ),
    ),
    *_of(
        "policy/triggers.py",
        (
            "triggers_within_others_ignore_idle_time",
            "return isinstance(trigger, kinds) or any(_contains(part, *kinds) for part in parts)",
            "return isinstance(trigger, kinds)",
            "compaction/test_strategies.py::test_a_cold_cache_is_used_before_the_next_turn",
        ),
    ),
    *_of(
        "memory/extraction.py",
        (
            "facts_come_from_anybody",
            "if any(m.role not in row.roles for m in sources):",
            "if False:",
            "sections/test_memory_items.py::test_what_was_not_said_is_dropped",
        ),
        (
            "a_name_that_nobody_said_is_learnt",
            "names <= known and ",
            "",
            "sections/test_memory_items.py::test_what_was_not_said_is_dropped",
        ),
        (
            "a_key_may_be_a_sentence",
            " or len(key.split()) > KEY_WORDS",
            "",
            "sections/test_memory_items.py::test_what_was_not_said_is_dropped",
        ),
        (
            "summaries_of_two_sessions_have_one_parent",
            "own = [n for n in reversed(nodes) if n.session == open_session.key.session]",
            "own = [*reversed(nodes)]",
            "sections/test_memory_items.py::test_the_trees_of_two_sessions_are_two",
        ),
    ),
    *_of(
        "io/session_files.py",
        (
            "an_import_believes_that_nothing_was_stored_since_it_looked",
            "expect=head)",
            "expect=open_session.state.head)",
            "retrieval/test_recall_beside_excerpts.py::test_an_excerpt_is_found_where_another_thread_stores_a_part_of_a_file",
        ),
        (
            "an_import_leaves_the_turn_that_it_completes_open",
            'drafts.append(closing_draft(engine.ports, place, "completed"))',
            "pass",
            "io/test_transfer.py::test_lines_complete_the_turn_that_has_a_part_of_them",
        ),
        (
            "an_exported_window_has_no_pins",
            'fields={"pinned": True} if m.id in pins else {})',
            "fields={})",
            "io/test_transfer.py::test_zones",
        ),
        (
            "a_file_that_cannot_be_written_leaves_a_part_behind",
            "            Path(name).unlink()\n",
            "            pass\n",
            "io/test_transfer.py::test_a_file_that_cannot_be_put_in_its_place_leaves_nothing_behind",
        ),
        (
            "an_import_takes_an_undone_edit_into_its_snapshots",
            "if isinstance(record.body, Undone):",
            "if False:",
            "io/test_transfer.py::test_what_was_undone_is_undone_in_the_copy",
        ),
        (
            "no_trigger_is_asked_after_an_import",
            "        yield from engine.fitter.maintain(open_session, open_session.stage())\n",
            "",
            "io/test_transfer.py::test_a_large_import_is_compacted_at_once",
        ),
        (
            "a_changed_snapshot_is_loaded",
            'if _digest(rows) != content["digest"]:',
            "if False:",
            "io/test_transfer.py::test_what_is_no_snapshot",
        ),
    ),
    *_of(
        "compaction/goal.py",
        (
            "the_goal_is_asked_for_with_whole_messages",
            'if message.role == "tool" or len(message.text) <= MESSAGE_CHARS:',
            "if True:",
            "engine/test_goal.py::test_long_messages_are_cut_where_the_goal_is_asked_for",
        ),
    ),
    *_of(
        "memory/store.py",
        (
            "items_of_equal_score_come_in_any_order_of_confidence",
            "(-r.score, -r.item.confidence, -r.item.created_s, r.item.id)",
            "(-r.score, -r.item.created_s, r.item.id)",
            "sections/test_memory_items.py::test_items_of_equal_score_are_shown_by_confidence",
        ),
        (
            "a_session_sees_what_is_private_to_another",
            "return [i for i in items if i.shared or i.session == key.session]",
            "return [*items]",
            "sections/test_memory_items.py::test_sessions_see_what_is_shared_and_nothing_of_another_owner",
        ),
    ),
    *_of(
        "session/memory.py",
        (
            "a_session_forgets_what_it_does_not_see",
            "[i for i in ids if i in known]",
            "ids",
            "sections/test_memory_items.py::test_sessions_see_what_is_shared_and_nothing_of_another_owner",
        ),
    ),
    *_of(
        "memory/section.py",
        (
            "the_digests_of_others_are_those_of_the_session_too",
            "items = [i for i in items if i.session != key.session]",
            "pass",
            "sections/test_memory_items.py::test_other_sessions_digests_are_a_section_of_their_own",
        ),
    ),
    *_of(
        "tokens/media.py",
        (
            "the_tables_of_a_photograph_are_its_dimensions",
            " and marker not in (0xC4, 0xC8, 0xCC)",
            "",
            "engine/test_media.py::test_an_image_of_low_detail_and_ones_that_say_nothing",
        ),
        (
            "sound_of_unknown_length_costs_nothing",
            "UNKNOWN_IMAGE_TOKENS if medium.size is None else 0",
            "0",
            "engine/test_media.py::test_sound_and_film_are_counted_by_their_length",
        ),
        (
            "a_forged_file_has_any_number_of_pages",
            "marked_pages = min(len(_PAGE.findall(_decoded(encoded))), -(-size // LEAST_PAGE_BYTES))",
            "marked_pages = len(_PAGE.findall(_decoded(encoded)))",
            "engine/test_media.py::test_a_pdf_has_no_more_pages_than_its_bytes_allow",
        ),
    ),
    *_of(
        "tokens/counter.py",
        (
            "the_summary_of_a_service_counts_as_our_text",
            "return total if provided is None else max(total, MESSAGE_OVERHEAD_TOKENS + provided.tokens)",
            "return total",
            "engine/test_budget.py::test_a_summary_that_a_service_wrote_counts_as_what_is_sent_of_it",
        ),
    ),
    *_of(
        "tokens/text.py",
        (
            "a_corrupt_table_of_an_encoding_is_used",
            "        if _is_intact(file, data):\n            return data",
            "        if True:\n            return data",
            "engine/test_tokens.py::test_a_corrupt_file_is_passed_over",
        ),
    ),
    *_of(
        "session/service.py",
        (
            "a_full_store_is_raised_and_no_outcome",
            "    except StoreError as error:\n",
            "    except ZeroDivisionError as error:\n",
            "engine/test_service.py::test_compact_context_answers_with_a_value",
        ),
        (
            "an_adaptive_window_waits_a_turn_longer",
            "open_session.state.turns >= ADAPTIVE_TURNS",
            "open_session.state.turns > ADAPTIVE_TURNS",
            "engine/test_service.py::test_memory_first_shows_the_newest_two_and_recalls_the_rest",
        ),
        (
            "tools_do_not_count_before_a_compaction_ahead",
            "if stage.view.tokens + open_session.overhead_tokens <= threshold_ratio",
            "if stage.view.tokens <= threshold_ratio",
            "engine/test_service.py::test_proactive_compression_counts_the_open_turn_and_the_tools",
        ),
        (
            "rounds_do_not_count_before_a_compaction_ahead",
            "    stage = open_session.stage(turn_id)\n    if stage.view",
            "    stage = open_session.stage()\n    if stage.view",
            "engine/test_service.py::test_proactive_compression_counts_the_open_turn_and_the_tools",
        ),
        (
            "code_is_among_the_recalled_texts_too",
            "if not _stored(f) and f.note.kind != CODE]",
            "if not _stored(f)]",
            "engine/test_service.py::test_prepare_context_asks_puts_in_and_reports",
        ),
        (
            "summaries_of_outputs_make_a_hard_compaction",
            'if outcome.event.strategy in ("clear_tools", "tool_summaries") else "hard"',
            'if outcome.event.strategy == "clear_tools" else "hard"',
            "engine/test_service.py::test_a_compaction_that_shows_summaries_of_outputs_is_soft",
        ),
        (
            "a_required_section_may_take_the_whole_budget",
            "budget - sum(e.tokens for e in stage.view.system) - question_tokens,",
            "budget,",
            "engine/test_service.py::test_a_required_section_that_does_not_fit_beside_the_prompt_is_named",
        ),
    ),
    *_of(
        "stores/key_value.py",
        (
            "a_lease_of_a_key_value_store_never_ends",
            "if other != holder and until_s > now_s:",
            "if other != holder:",
            "stores/test_store_suite.py::TestOutsideStore::test_a_lease_ends_by_itself",
        ),
    ),
    *_of(
        "stores/sql_memory.py",
        (
            "a_forgotten_text_stays_as_a_quotation",
            'replace(decode_item(payload), replaces="")',
            "decode_item(payload)",
            "stores/test_store_suite.py::TestSqlite::test_forgotten_text_is_not_learnt_again_from_the_same_messages",
        ),
    ),
    *_of(
        "../../langchain_ctx/tools.py",
        (
            "claude_gets_a_schema_with_one_of",
            'closed["allOf" if name == "allOf" else "anyOf"]',
            "closed[name]",
            "langchain/test_wire_agents.py::test_a_schema_of_an_earlier_draft_keeps_its_definitions_and_is_closed",
        ),
        (
            "a_model_reads_the_image_of_a_message_for_the_user",
            'if message.visibility == "user" or isinstance(content, str):',
            "if isinstance(content, str):",
            "langchain/test_history_tools.py::test_an_image_is_returned_where_the_tool_may_return_images",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/agent_tools.py",
        (
            "an_agent_reads_the_image_of_a_message_for_the_user",
            'if message.visibility == "user" or not media:',
            "if not media:",
            "llamaindex/test_history_tools.py",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/tool_rounds.py",
        (
            "a_trimmed_list_is_refused_for_its_first_result",
            'if any(m.role != "tool" for m in messages) else None',
            'if any(m.role == "assistant" for m in messages) else None',
            "faces/test_results_without_ids.py",
        ),
        (
            "a_result_that_comes_twice_is_told_twice",
            'if content_key(message) not in {content_key(m) for m in pairs if m.role == "tool"}:',
            "if True:",
            "llamaindex/test_memory_beside_llm.py::test_a_result_that_comes_twice_is_kept_once",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/wrapper.py",
        (
            "an_edited_copy_in_a_list_stops_the_llm",
            "answered(with_distinct_ids(from_chat_messages(messages), new_id), new_id)",
            "answered(from_chat_messages(messages), new_id)",
            "llamaindex/test_whole_lists.py",
        ),
    ),
    *_of(
        "../../langchain_ctx/history.py",
        (
            "a_history_stops_at_an_id_that_comes_twice",
            "except MessageConflictError:",
            "except StoreError:",
            "langchain/test_history.py",
        ),
    ),
    *_of(
        "session_state.py",
        (
            "a_snapshot_of_a_newer_release_stops_its_session",
            "except StoreFormatError:  # of a newer release",
            "except HeadMovedError:  # of a newer release",
            "stores/test_newer_records.py",
        ),
    ),
    *_of(
        "engine/erase.py",
        (
            "a_snapshot_of_a_newer_release_stops_an_erasure",
            "except StoreFormatError:  # of a newer release",
            "except HeadMovedError:  # of a newer release",
            "stores/test_newer_records.py",
        ),
    ),
    *_of(
        "history/cuts.py",
        (
            "a_result_does_not_find_its_numbered_call",
            '("id", call.id), ("id", call.id.rpartition("#")[0]), ',
            '("id", call.id), ',
            "llamaindex/test_call_ids.py faces/test_results_without_ids.py",
        ),
        (
            "a_result_without_an_id_is_matched_by_order_alone",
            'call = calls.take("name", result.name or result.call_id) or calls.take("name", result.call_id)',
            "call = None",
            "faces/test_results_without_ids.py",
        ),
        (
            "a_result_without_an_id_is_matched_by_tool_alone",
            "    for index in nameless:\n",
            "    for index in ():\n",
            "faces/test_results_without_ids.py",
        ),
        (
            "a_result_under_an_unknown_id_of_a_round_that_ended_answers_nothing",
            "if ended or calls.may_be_any(result) else []",
            "if calls.may_be_any(result) else []",
            "faces/test_results_without_ids.py",
        ),
        (
            "any_result_answers_the_call_that_waits",
            'return not result.call_id or ("name"',
            'return True or ("name"',
            "faces/test_results_without_ids.py",
        ),
        (
            "results_are_sent_as_tools_were_done",
            "sorted(group, key=lambda m: place.get(m.tool_results[0].call_id, len(place)))",
            "group",
            "faces/test_results_without_ids.py",
        ),
    ),
    *_of(
        "history/log.py",
        (
            "a_turn_that_is_given_up_joins_at_the_end",
            'if status == "aborted" and joined and',
            "if False and joined and",
            "engine/test_acknowledged.py",
        ),
        (
            "a_turn_that_is_given_up_parts_another_one",
            "return next((i for i in range(at, len(live)) if is_question(live[i].message)), len(live))",
            "return at",
            "engine/test_acknowledged.py",
        ),
        (
            "a_reader_does_not_see_the_turns_of_others",
            "            if other != turn_id and turn.entries:\n",
            "            if False:\n",
            "engine/test_acknowledged.py",
        ),
        (
            "a_reader_does_not_see_calls_that_nobody_answered",
            "turn.entries if self.unanswered else turn.entries[:complete]",
            "turn.entries[:complete]",
            "engine/test_acknowledged.py",
        ),
        (
            "a_call_whose_result_came_late_keeps_its_old_place",
            "if self.unanswered and entry.id in self.dropped:",
            "if False:",
            "engine/test_outages.py engine/test_bad_input.py",
        ),
    ),
    *_of(
        "engine/engine.py",
        (
            "a_result_without_an_id_answers_any_run",
            "(next(iter(waiting.values())) if len(waiting) == 1 else ())",
            "next(iter(waiting.values()), ())",
            "llamaindex/test_call_ids.py::test_a_result_without_an_id_is_refused_where_two_runs_wait",
        ),
    ),
    *_of(
        "session_state.py",
        (
            "the_question_of_a_run_gives_way_to_its_rounds",
            "return (*self.state.pins, *self.asked_ids)",
            "return (*self.state.pins,)",
            "llamaindex/test_run_questions.py",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/replies.py",
        (
            "cached_tokens_are_read_from_the_copied_counts",
            " = [*told, *own] if notes.keys() & _CACHE_NOTES else [*own, *told]",
            " = [*told, *own]",
            "llamaindex/test_usage_reports.py",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/backend.py",
        (
            "only_the_last_chunk_tells_the_usage",
            "self._usage = _newer(usage_of(response), self._usage)",
            "self._usage = usage_of(response)",
            "llamaindex/test_usage_reports.py",
        ),
        (
            "a_refused_option_is_sent_again",
            "        self._usage_refused = True\n",
            "",
            "llamaindex/test_usage_reports.py",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/messages.py",
        (
            "a_block_that_is_listed_twice_is_stored_twice",
            "return [*{id(block): block for block in message.blocks}.values()]",
            "return [*message.blocks]",
            "llamaindex/test_usage_reports.py",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/chat_store.py",
        (
            "archived_messages_are_deleted",
            "        if moved and to is not None:\n",
            "        if False:\n",
            "llamaindex/test_async_chat_store.py::test_the_oldest_are_archived_or_deleted",
        ),
    ),
    *_of(
        "backends/profile.py",
        (
            "arguments_that_python_reads_go_out_as_an_object",
            "    value = json_object(call.arguments, strict_json)\n",
            "    value = json_object(call.arguments)\n",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
    ),
    *_of(
        "validation.py",
        (
            "a_number_beyond_floats_is_json",
            "    if not math.isfinite(number):",
            "    if False:",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
        (
            "half_a_surrogate_pair_is_json",
            "    if _SURROGATE.search(text):",
            "    if False:",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
        (
            "json_of_any_depth_is_read",
            "        if depth > MAX_JSON_DEPTH:",
            "        if depth > 10**6:",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
    ),
    *_of(
        "messages.py",
        (
            "the_fields_of_a_media_part_may_be_a_list",
            "    if sent is not None and not isinstance(value, sent):",
            "    if False:",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
    ),
    *_of(
        "backends/openai_responses/request.py",
        (
            "a_call_of_a_clients_tool_is_answered_as_a_function",
            '        if "type" not in item:\n',
            "        if True:\n",
            "wire/test_client_tools.py::test_w1_a_client_run_tool_is_a_call_and_is_answered_in_its_own_output",
        ),
        (
            "a_stored_call_of_a_clients_tool_is_answered_as_a_function",
            "    earlier = request.messages if stored else ()",
            "    earlier = ()",
            "wire/test_client_tools.py::test_w1_with_a_stored_response_the_results_alone_are_in_the_form_of_their_calls",
        ),
    ),
    *_of(
        "backends/openai_responses/client_tools.py",
        (
            "a_shell_of_the_service_is_a_call",
            'not in (None, "local"):',
            'not in (None, "local") and False:',
            "wire/test_client_tools.py::test_w1_a_tool_that_the_service_runs_is_no_call",
        ),
        (
            "the_safety_checks_are_not_acknowledged",
            '            if item.get("pending_safety_checks"):',
            "            if False:",
            "wire/test_client_tools.py::test_w1_a_client_run_tool_is_a_call_and_is_answered_in_its_own_output",
        ),
    ),
    *_of(
        "backends/openai_chat/request.py",
        (
            "a_tools_image_stays_in_the_tool_message",
            "    sent = _with_media_behind(sent)\n",
            "",
            "wire/test_chat_blocks.py::test_w8_an_image_of_a_tool_stands_in_a_user_message_behind_the_whole_round",
        ),
        (
            "a_server_tool_call_of_openrouter_is_foreign",
            ' or (kind.endswith("_call") and not kind.startswith("reasoning."))',
            ' or kind.endswith("_call")',
            "wire/test_chat_blocks.py::test_w4_openrouter_gets_server_tool_calls_and_images_back",
        ),
        (
            "all_blocks_go_back_as_reasoning_details",
            'DETAILS["thinking" in as_text(block["type"])]',
            "DETAILS[0]",
            "wire/test_chat_blocks.py::test_w2_litellm_gets_thinking_blocks_back_and_null_beside_calls",
        ),
    ),
    *_of(
        "backends/openai_chat/parse.py",
        (
            "a_reference_of_mistral_is_dropped",
            "            return [Chunk(sealed=block, raw=body)]\n",
            "            return []\n",
            "wire/test_chat_blocks.py::test_w5_mistral_gets_signatures_and_references_back_in_their_places",
        ),
        (
            "an_image_alone_is_no_answer",
            '        if name in ("audio", "images") and value:',
            "        if False:",
            "wire/test_chat_blocks.py::test_w6_a_reply_with_an_image_or_a_sound_alone_is_an_answer_once",
        ),
    ),
    *_of(
        "backends/response_parser.py",
        (
            "a_silent_turn_is_asked_again",
            '        elif self.answered or (self._finish == "stop" and self.may_say_nothing):',
            "        elif self.answered:",
            "wire/test_silent_replies.py::test_w6_a_turn_that_ends_without_text_is_an_answer_once",
        ),
    ),
    *_of(
        "backends/anthropic/parse.py",
        (
            "an_input_of_none_is_taken_at_its_word",
            "        if not any(fields.get(name) for name in _INPUT):",
            "        if False:",
            "wire/test_silent_replies.py::test_w9_a_last_event_without_input_does_not_take_it_back",
        ),
    ),
    *_of(
        "stream.py",
        (
            "a_fallback_is_named_after_who_declined",
            "(self._model is None or chunk.hands_over)",
            "self._model is None",
            "wire/test_silent_replies.py::test_w9_a_fallback_names_the_model_that_wrote",
        ),
    ),
    *_of(
        "backends/converse/parse.py",
        (
            "a_citation_of_converse_is_dropped",
            '            block.citations.append(delta["citation"])',
            "            pass",
            "wire/test_silent_replies.py::test_w7_converse_keeps_citations_and_images_and_sends_them_back",
        ),
    ),
    *_of(
        "engine/request.py",
        (
            "an_empty_message_is_sent_again",
            " if says_something(entry.message) or entry is entries[-1]]",
            " if True]",
            "wire/test_legal_windows.py::test_l7_empty_messages_are_left_out_of_requests_and_stay_in_the_log",
        ),
    ),
    *_of(
        "history/alternation.py",
        (
            "later_system_messages_stay_system",
            'm.with_role("user") if m.role == "system" and i > head else m',
            "m",
            "wire/test_legal_windows.py::test_l6_a_users_own_model_gets_later_system_messages_as_it_takes_them",
        ),
    ),
    *_of(
        "backends/gemini/parse.py",
        (
            "tokens_of_geminis_tools_are_free",
            "    return usage + Usage(tools) if usage",
            "    return None if usage",
            "wire/test_small_print.py::test_w11_tokens_of_geminis_own_tools_are_input",
        ),
    ),
    *_of(
        "backends/anthropic/request.py",
        (
            "a_result_names_no_toolset",
            '            block["toolset_name"] = toolsets[block["tool_use_id"]]',
            "            pass",
            "wire/test_small_print.py::test_w11_the_toolset_of_a_call_goes_back_on_call_and_result",
        ),
    ),
    *_of(
        "backends/eventstream.py",
        (
            "a_damaged_frame_is_not_tried_again",
            'with a wrong checksum", "connection")',
            'with a wrong checksum")',
            "wire/test_small_print.py::test_w11_a_wrong_checksum_of_converse_is_tried_again",
        ),
    ),
    *_of(
        "engine/archive.py",
        (
            "a_fork_has_no_vectors",
            "    if ports.store.capabilities.vectors:\n",
            "    if False:\n",
            "retrieval/test_kept_vectors.py::test_r2_a_fork_embeds_nothing_again",
        ),
    ),
    *_of(
        "retrieval/embeddings.py",
        (
            "a_fork_has_the_mark_of_the_whole_log",
            "_encoded_mark(min(upto, head), ",
            "_encoded_mark(upto, ",
            "retrieval/test_kept_vectors.py::test_r2_a_fork_embeds_nothing_again",
        ),
        (
            "vectors_of_visible_messages_are_forgotten",
            "    yield from _keep(work, {seq for seq, _ in chunks}, upto=0)\n",
            "",
            "retrieval/test_kept_vectors.py::test_r2_the_vectors_of_older_visible_messages_are_kept",
        ),
    ),
    *_of(
        "stores/sql_tables.py",
        (
            "an_owners_erasure_removes_one_batch",
            "        while keys := self._read(lambda c: self._rows.left_over(c, owner)):",
            "        if keys := self._read(lambda c: self._rows.left_over(c, owner)):",
            "erasure/test_erase_sessions.py::test_an_owner_with_more_than_one_batch_goes_with_everything",
        ),
        (
            "rows_left_by_an_interrupted_erasure_join_a_new_session",
            "                self._rows.remove_left_over(connection, key)\n",
            "                pass\n",
            "erasure/test_retention.py::test_a_killed_erasure_of_an_owner_is_completed",
        ),
    ),
    *_of(
        "stores/memory.py",
        (
            "leases_of_an_erased_owner_stay",
            "            keys = (*self._logs, *(key for key, _ in self._leases))",
            "            keys = tuple(self._logs)",
            "stores/test_store_suite.py::TestMemoryStore",
        ),
    ),
    *_of(
        "engine/engine.py",
        (
            "a_message_joins_a_turn_that_others_have_closed",
            "        if turn in open_session.state.closed:\n            if hold_in",
            "        if False:\n            if hold_in",
            "engine/test_outages.py::test_what_is_added_to_a_turn_that_others_have_closed_goes_on_without_it",
        ),
        (
            "a_turn_that_is_closed_at_that_moment_is_a_conflict",
            "            for item in drafts:\n                check_open(open_session, item.turn_id)\n            raise",
            "            raise",
            "engine/test_undo.py::test_a_question_that_gives_up_a_call_which_is_answered_at_that_moment",
        ),
        (
            "a_message_is_stored_in_a_closed_turn",
            "        check_open(open_session, open_turn)\n        self.events",
            "        self.events",
            "llamaindex/test_overlapping_requests.py::test_a_list_goes_on_from_a_question_that_is_taken_back_meanwhile",
        ),
        (
            "a_late_rollback_although_others_went_on",
            "            went_on = any(\n",
            "            went_on = False and any(\n",
            "engine/test_outages.py::test_what_is_taken_back_late_stays_out_where_others_have_gone_on_without_it",
        ),
        (
            "a_late_rollback_of_what_a_retry_continued",
            '            if any(e.message.kind == "message" and e.id not in pending.stored_ids for e in entries):',
            "            if False:",
            "engine/test_outages.py::test_a_retry_gets_the_reply_that_is_stored_already",
        ),
    ),
    *_of(
        "engine/turn.py",
        (
            "a_reply_is_stored_in_a_closed_turn",
            "        check_open(open_session, place.turn_id)\n",
            "",
            "llamaindex/test_overlapping_requests.py::test_a_question_that_was_taken_back_elsewhere_is_asked_again",
        ),
        (
            "a_failed_edit_loses_what_it_replaced",
            "    if alone and attempt.removal:\n",
            "    if alone and attempt.removal and not attempt.stored_ids:\n",
            "engine/test_exchange.py::test_a_failed_edit_keeps_what_it_would_have_replaced",
        ),
        (
            "a_removal_is_reverted_though_others_closed_the_turn",
            " or new_turn in open_session.state.closed)\n",
            ")\n",
            "engine/test_exchange.py::test_a_failed_edit_stays_where_another_process_has_made_it",
        ),
    ),
    *_of(
        "history/cuts.py",
        (
            "a_round_at_the_end_is_one_short",
            '    while end < len(entries) and entries[end].message.role == "tool":\n        end += 1\n    return (start, end)',
            '    while end + 1 < len(entries) and entries[end].message.role == "tool":\n        end += 1\n    return (start, end)',
            "engine/test_undo.py::test_a_round_at_the_end_of_the_conversation_goes_as_a_whole",
        ),
    ),
    *_of(
        "session_state.py",
        (
            "recall_keeps_erased_passages",
            "        self.passage_cache = PassageCache()\n",
            "",
            "erasure/test_erase_meanwhile.py::test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased",
        ),
        (
            "texts_of_sections_keep_what_is_erased",
            "        self.request_texts.clear()\n",
            "",
            "erasure/test_erase_meanwhile.py::test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased",
        ),
        (
            "the_sent_request_keeps_what_is_erased",
            "        self.sent_request = None\n",
            "",
            "erasure/test_erase_meanwhile.py::test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased",
        ),
        (
            "texts_of_an_erased_session_stay_in_memory",
            "            open_session.state = state\n            open_session.forget_texts()\n        return",
            "            open_session.state = state\n        return",
            "erasure/test_erase_meanwhile.py::test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased",
        ),
        (
            "texts_stay_in_memory_after_an_erasure_elsewhere",
            "        if any(isinstance(r.body, Erased) for r in records):\n            open_session.forget_texts()\n",
            "",
            "erasure/test_erase_meanwhile.py::test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased",
        ),
        (
            "an_older_state_wins_after_a_reload",
            "            if state.head >= open_session.state.head:\n                open_session.state = state",
            "            open_session.state = state",
            "engine/test_undo.py::test_a_session_that_is_read_anew_keeps_what_another_thread_has_stored_meanwhile",
        ),
    ),
    *_of(
        "engine/erase.py",
        (
            "memory_of_an_erased_message_stays_in_other_sessions",
            " or lost.get(i.session, _NONE) & set(i.sources)\n",
            "\n",
            "erasure/test_erase_meanwhile.py::test_what_was_learnt_goes_also_where_another_session_shows_it",
        ),
        (
            "memory_of_an_erased_session_stays_in_others",
            "(whole and i.session == key.session) or ",
            "",
            "erasure/test_erase_meanwhile.py::test_what_was_learnt_goes_also_where_another_session_shows_it",
        ),
    ),
    *_of(
        "compaction/background.py",
        (
            "a_prepared_summary_is_used_after_its_span_changed",
            "        if not usable or not _is_unchanged(open_session, prepared_plan):",
            "        if not usable:",
            "compaction/test_background.py::test_what_was_prepared_is_not_used_for_a_request_that_has_to_fit_after_its_source_changed",
        ),
        (
            "what_was_prepared_is_written_again",
            "        if background.ready is not None:\n            return False\n",
            "",
            "compaction/test_background.py::test_what_was_prepared_early_is_not_written_again_before_it_is_due",
        ),
    ),
    *_of(
        "backends/anthropic/request.py",
        (
            "a_round_of_many_calls_is_out_of_the_caches_sight",
            "        _last(blocks[epoch:before]),\n",
            "",
            "wire/test_prompt_cache.py::test_r3_after_a_round_of_any_size_everything_that_was_sent_is_read_from_the_cache",
        ),
    ),
    *_of(
        "compaction/summarize.py",
        (
            "a_strict_session_takes_sentences_for_a_summary",
            "        if rules.strict_summaries:\n",
            "        if False:\n",
            "compaction/test_summaries.py::test_r9_a_strict_session_has_no_summary_that_no_model_wrote",
        ),
    ),
    *_of(
        "compaction/compact.py",
        (
            "a_strict_session_says_not_enough_history",
            "            if case.rules.strict_summaries:\n                raise\n",
            "",
            "compaction/test_summaries.py::test_r9_a_strict_session_has_no_summary_that_no_model_wrote",
        ),
    ),
    *_of(
        "engine/fit.py",
        (
            "a_failing_strategy_is_logged_with_each_request",
            "isinstance(error, StrategyError) and not open_session.strategy_failed:",
            "isinstance(error, StrategyError):",
            "compaction/test_own_strategies.py::test_an_async_summarizer_that_fails_costs_no_reply",
        ),
        (
            "a_failing_strategy_is_never_logged",
            "isinstance(error, StrategyError) and not open_session.strategy_failed:",
            "False:",
            "compaction/test_own_strategies.py::test_an_async_summarizer_that_fails_costs_no_reply",
        ),
    ),
    *_of(
        "../../langchain_ctx/session_routing.py",
        (
            "a_session_id_may_be_a_bool",
            "if isinstance(session, bool) or not isinstance(session, str | int | UUID):",
            "if not isinstance(session, str | int | UUID):",
            "faces/test_owner_names.py::test_no_entry_point_takes_what_names_no_session",
        ),
        (
            "a_missing_name_is_shared",
            '        if name is None:\n            raise ConfigError(f"the {what} is missing',
            '        if False:\n            raise ConfigError(f"the {what} is missing',
            "langchain/test_mistakes.py::test_settings",
        ),
        (
            "a_thread_gives_way_to_a_session_id",
            '        if "thread_id" in configurable:\n            return configurable["thread_id"]\n',
            "",
            "faces/test_owner_names.py::test_no_call_takes_what_names_no_owner_or_session",
        ),
        (
            "a_run_without_its_owner_goes_on",
            "            if configurable.get(self.owner_key) is None:",
            "            if False:",
            "langchain/test_client_names.py::test_h1_an_owner_is_read_under_the_programs_key_alone",
        ),
        (
            "a_name_from_the_run_is_believed",
            "        if name is not None and configurable.get(key) == name:",
            "        if False:",
            "langchain/test_client_names.py::test_h1_a_history_refuses_names_from_the_config_of_a_run",
        ),
        (
            "runs_of_one_place_share_a_session",
            "    if first and of_a_run:",
            "    if False:",
            "langchain/test_places.py::test_a_sub_agent_on_the_same_model_sees_only_its_own",
        ),
        (
            "a_sub_graph_shares_its_callers_session",
            '        key = key._replace(session=f"{key.session}{WITHIN}{place}")',
            "        pass",
            "langchain/test_places.py::test_a_sub_agent_on_the_same_model_sees_only_its_own",
        ),
        (
            "a_task_of_a_node_is_a_place",
            "    while path and path[-1] is True:",
            "    while False:",
            "langchain/test_places.py::test_a_task_of_a_workflow_is_no_sub_graph",
        ),
        (
            "a_place_is_no_place",
            "anonymous=of_a_run, place=of_a_run and first is not None)",
            "anonymous=of_a_run, place=False)",
            "langchain/test_places.py::test_parallel_sends_do_not_meet",
        ),
        (
            "a_structured_reply_waits_for_a_result",
            "            return True\n        case _:",
            "            return False\n        case _:",
            "langchain/test_with_context.py::test_an_answer_by_a_function_stays_in_the_conversation",
        ),
        (
            "a_system_message_names_the_run",
            'return next((m.id for m in converted if m.type != "system"), None)',
            "return next((m.id for m in converted), None)",
            "langchain/test_places.py::test_a_sub_agent_on_the_same_model_sees_only_its_own",
        ),
        (
            "sessions_of_sub_agents_are_not_the_threads",
            '({re.escape(WITHIN)}.+)?", re.DOTALL)',
            '", re.DOTALL)',
            "langchain/test_places.py::test_an_agent_as_a_node_goes_on_with_its_session",
        ),
        (
            "the_kind_of_an_address_is_lost",
            'kinds = ["place"] if self.place else ["run"] if self.anonymous else []',
            "kinds = list[str]()",
            "langchain/test_places.py::test_a_handoff_among_parallel_calls",
        ),
    ),
    *_of(
        "../../langchain_ctx/callbacks.py",
        (
            "a_summary_hears_of_no_tracer",
            '    token = _CALLBACKS.set(ensure_config(config).get("callbacks"))',
            "    token = _CALLBACKS.set(None)",
            "langchain/test_summary_usage.py::test_a_summary_counts",
        ),
        (
            "tokens_of_a_summary_are_streamed",
            "return handler if takes_none or added else _WithoutTokens(handler)",
            "return handler",
            "langchain/test_summary_usage.py::test_h3_each_summary_is_counted_and_traced_once",
        ),
        (
            "a_summary_streams_into_the_answer",
            " if not isinstance(h, _StreamingCallbackHandler)]",
            "]",
            "langchain/test_middleware_events.py::test_summaries_never_reach_the_users_stream",
        ),
        (
            "a_handler_of_langchain_hears_twice",
            "takes_none or added else",
            "takes_none else",
            "langchain/test_summary_usage.py::test_h3_each_summary_is_counted_and_traced_once",
        ),
    ),
    *_of(
        "../../langchain_ctx/active_model.py",
        (
            "a_given_summariser_is_asked_on_the_live_prefix",
            "        same = self._given is None or self._given is caller.own or self._given is caller.model",
            "        same = True",
            "langchain/test_live_prefix.py::test_another_summariser_gets_a_transcript_and_the_agents_own_does_not",
        ),
        (
            "a_model_with_a_session_of_its_own_is_taken",
            "    return any(setting is not None and not isinstance(setting, bool) for setting in settings)",
            "    return False",
            "langchain/test_with_context.py::test_a_model_with_sessions_of_its_own_and_an_unknown_window_are_refused",
        ),
        (
            "store_false_keeps_a_session",
            "setting is not None and not isinstance(setting, bool) for",
            "setting is not None for",
            "langchain/test_with_context.py::test_a_models_own_field_called_store_is_not_a_session_store",
        ),
        (
            "a_service_that_keeps_the_conversation_gets_a_window",
            '    if getattr(model, "use_previous_response_id", None) is True:',
            "    if False:",
            "langchain/test_with_context.py::test_a_model_whose_service_keeps_the_conversation_is_refused",
        ),
    ),
    *_of(
        "../../langchain_ctx/message_lists.py",
        (
            "an_edited_call_has_the_same_version",
            "text = repr((message.type, message.content, calls, answers))",
            "text = repr((message.type, message.content, answers))",
            "langchain/test_versions.py::test_an_edit_is_another_version",
        ),
        (
            "an_edited_result_has_the_same_version",
            "text = repr((message.type, message.content, calls, answers))",
            "text = repr((message.type, message.content, calls))",
            "langchain/test_versions.py::test_an_edit_is_another_version",
        ),
        (
            "blocks_are_looked_up_as_texts",
            'if not isinstance(content, str) or fields.get("tool_calls") or fields.get("invalid_tool_calls"):',
            "if not isinstance(content, str):",
            "langchain/test_versions.py::test_an_edit_is_another_version",
        ),
        (
            "cache_marks_of_the_caller_are_lost",
            "    own = {prompt_text(m): m for m in given if _is_more_than_text(m.content)}",
            "    own = dict[str, BaseMessage]()",
            "langchain/test_system_prompts.py::test_l9_what_is_more_than_text_is_sent_as_it_was_given",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/messages.py",
        (
            "paired_ids_stay_as_they_came",
            "        block.tool_call_id = call.id\n",
            "        pass\n",
            "llamaindex/test_call_ids.py::test_an_agent_whose_service_names_calls_by_their_tool",
        ),
        (
            "calls_in_kwargs_keep_their_ids",
            '    if isinstance(kwargs_calls, list):\n        kwargs["tool_calls"]',
            '    if False:\n        kwargs["tool_calls"]',
            "llamaindex/test_call_ids.py::test_calls_and_results_come_back_under_the_same_ids",
        ),
        (
            "a_result_keeps_its_missing_id",
            "    if results and results[0].call_id:",
            "    if False:",
            "llamaindex/test_call_ids.py::test_calls_and_results_come_back_under_the_same_ids",
        ),
        (
            "results_of_one_message_are_one",
            "        elif len(results := message.tool_results) > 1:",
            "        elif len(results := message.tool_results) > 99:",
            "llamaindex/test_convert.py::test_one_message_for_each_result",
        ),
        (
            "calls_of_one_id_stay_alike",
            '    return raw if raw not in used else f"{raw}#{number}"',
            "    return raw",
            "llamaindex/test_convert.py::test_what_a_model_can_see_becomes_parts",
        ),
        (
            "a_call_without_an_id_gets_none",
            "    if not raw:\n        return made_call_id(message_id, number)\n",
            '    if not raw:\n        return ""\n',
            "llamaindex/test_convert.py::test_what_a_model_can_see_becomes_parts",
        ),
        (
            "a_marked_message_is_only_text",
            '    marked = message.name or message.kind != "message" or message.preserve_reasoning is not None',
            "    marked = False",
            "faces/test_preserve_reasoning.py::test_llamaindex_messages_carry_it_both_ways",
        ),
        (
            "what_came_beside_a_text_is_lost",
            "    return only.text if type(only) is TextPart and only.extra is None and not marked else None",
            "    return only.text if type(only) is TextPart and not marked else None",
            "llamaindex/test_part_order.py::test_a_whole_reply_comes_back_in_its_order",
        ),
        (
            "a_reply_does_not_say_which_model_made_it",
            '    note: Json = {} if message.model is None else {"model": message.model}',
            "    note: Json = {}",
            "llamaindex/test_part_order.py::test_a_whole_reply_comes_back_in_its_order",
        ),
        (
            "what_came_beside_a_call_is_not_noted",
            '        note["calls"] = extras',
            "        pass",
            "llamaindex/test_part_order.py::test_a_whole_reply_comes_back_in_its_order",
        ),
        (
            "the_order_of_a_reply_is_not_noted",
            '        note["parts"] = order_note(message.parts)',
            "        pass",
            "llamaindex/test_part_order.py::test_a_whole_reply_comes_back_in_its_order",
        ),
        (
            "texts_of_one_answer_stay_apart",
            "            joined[-1] = TextPart(last.text + part.text, part.extra or last.extra)",
            "            joined.append(part)",
            "llamaindex/test_part_order.py::test_every_kind_of_part_comes_back",
        ),
        (
            "streaming_engines_lose_the_thought",
            "        kwargs[REASONING_KEY] = message.reasoning",
            "        pass",
            "llamaindex/test_convert.py::test_messages_of_other_faces_are_normal_messages",
        ),
        (
            "the_signature_of_a_thought_is_lost",
            'info = {"signature": part.signature, "details": part.details}',
            'info = {"details": part.details}',
            "faces/test_preserve_reasoning.py::test_reasoning_with_a_signature_keeps_both",
        ),
        (
            "the_details_of_a_thought_are_lost",
            'info = {"signature": part.signature, "details": part.details}',
            'info = {"signature": part.signature}',
            "llamaindex/test_part_order.py::test_a_whole_reply_comes_back_in_its_order",
        ),
        (
            "an_excerpt_is_cut_into_the_old_blocks",
            "    if sum(lengths) + max(0, len(lengths) - 1) != len(content):\n        return None\n",
            "",
            "llamaindex/test_convert.py::test_an_excerpt_is_shown_not_what_it_stands_for",
        ),
        (
            "blocks_that_are_gone_are_restored",
            "    return None if queue else blocks",
            "    return blocks",
            "llamaindex/test_convert.py::test_what_a_message_has_beyond_its_notes_is_shown",
        ),
        (
            "a_text_is_a_list_of_messages",
            "    if is_a(messages, (str, ChatMessage, Mapping)) or not is_a(messages, Iterable):",
            "    if not is_a(messages, Iterable):",
            "llamaindex/test_mistakes.py::test_settings",
        ),
        (
            "recalled_passages_stand_behind_the_question",
            "messages.insert(len(messages) - 1 if last_is_user else len(messages), section(recalled))",
            "messages.append(section(recalled))",
            "llamaindex/test_memory.py::test_recalled_passages_stand_before_the_question_and_are_never_stored",
        ),
        (
            "the_newest_question_is_not_marked",
            '        mark(messages[-1], **{NEWEST_KEY: "yes"})',
            "        pass",
            "llamaindex/test_memory_beside_llm.py::test_a_question_that_others_overtook_is_asked_behind_theirs",
        ),
        (
            "the_archive_is_active",
            "(m.id in ids) == (status is MessageStatus.ACTIVE)]",
            "True]",
            "llamaindex/test_stock_ways.py::test_active_and_archived_messages",
        ),
        (
            "an_archive_may_be_emptied",
            "    if status is MessageStatus.ARCHIVED:",
            "    if False:",
            "llamaindex/test_stock_ways.py::test_active_and_archived_messages",
        ),
        (
            "own_summaries_are_stored",
            "    return [m for m in messages if m.id not in known]",
            "    return [*messages]",
            "llamaindex/test_memory.py::test_recalled_passages_stand_before_the_question_and_are_never_stored",
        ),
        (
            "a_copied_message_keeps_its_id",
            "        own = message if message.id not in distinct else replace(message, id=new_id())",
            "        own = message",
            "llamaindex/test_memory.py::test_a_copy_in_a_list_that_is_set_is_a_new_message",
        ),
        (
            "a_function_result_may_answer_nothing",
            '    if message.role is MessageRole.FUNCTION and not strays and not message.additional_kwargs.get("tool_call_id"):',
            "    if False:",
            "llamaindex/test_convert.py::test_a_function_message_without_a_call_id_is_refused",
        ),
        (
            "marks_are_stored_as_kwargs",
            "if k not in _DROPPED}",
            "}",
            "llamaindex/test_convert.py::test_a_round_trip_is_exact",
        ),
        (
            "text_inside_a_block_is_not_told",
            "        if not texts:\n            self.spec.append(note)",
            "        if True:\n            self.spec.append(note)",
            "llamaindex/test_convert.py::test_what_a_model_can_see_becomes_parts",
        ),
        (
            "empty_arguments_stay_empty",
            'arguments if arguments.strip() else "{}"',
            "arguments",
            "llamaindex/test_convert.py::test_what_a_model_can_see_becomes_parts",
        ),
        (
            "a_call_stands_in_blocks_and_kwargs",
            "            if call.id not in known and (call.id or not known):",
            "            if True:",
            "llamaindex/test_part_order.py::test_a_whole_reply_comes_back_in_its_order",
        ),
        (
            "reasoning_in_kwargs_is_not_read",
            "        if isinstance(reasoning, str) and reasoning and not any(isinstance(p, ReasoningPart) for p in self.parts):",
            "        if False:",
            "faces/test_preserve_reasoning.py::test_a_request_of_llamaindex_goes_by_it",
        ),
        (
            "reasoning_in_kwargs_and_blocks_counts_twice",
            "if isinstance(reasoning, str) and reasoning and not any(isinstance(p, ReasoningPart) for p in self.parts):",
            "if isinstance(reasoning, str) and reasoning:",
            "faces/test_preserve_reasoning.py::test_llamaindex_messages_carry_it_both_ways",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/reasoning.py",
        (
            "a_family_member_without_chat_is_helped",
            'return "helped" if _FAMILY in modules and llm.metadata.is_chat_model else "unknown"',
            'return "helped" if _FAMILY in modules else "unknown"',
            "llamaindex/test_reasoning.py::test_a_completion_endpoint_has_no_place_for_it",
        ),
        (
            "a_native_integration_is_unknown",
            '    if any(f"{module}.".startswith(_NATIVE) for module in modules):',
            "    if False:",
            "faces/test_bound_thoughts.py::test_an_agent_goes_on_after_compactions",
        ),
        (
            "an_llm_that_thinks_is_not_checked",
            '    if replay(llm) == "unknown" and any(getattr(llm, name, None) for name in _THINKS):',
            "    if False:",
            "llamaindex/test_wrapped.py::test_a_thinking_llm_that_cannot_be_helped",
        ),
        (
            "thoughts_are_left_out_of_the_request",
            "return {**kwargs, _MESSAGES: sent} if _restored(sent, messages, always=is_deepseek) else kwargs",
            "return kwargs",
            "llamaindex/test_reasoning.py::test_with_one_line_it_finishes",
        ),
        (
            "deepseek_is_like_the_others",
            "always=is_deepseek)",
            "always=False)",
            "llamaindex/test_reasoning.py::test_deepseeks_own_llm_has_the_field_in_every_answer",
        ),
        (
            "an_extra_body_of_the_caller_is_lost",
            '{**(arguments.get("extra_body") or {}), "messages": sent}',
            '{"messages": sent}',
            "llamaindex/test_reasoning.py::test_all_that_is_not_reasoning_is_sent_as_before",
        ),
        (
            "a_thought_in_kwargs_is_not_sent",
            "    return known if isinstance(known, str) else None",
            "    return None",
            "llamaindex/test_reasoning.py::test_a_streaming_chat_engine_sends_it_back",
        ),
        (
            "thoughts_are_not_noted_for_engines",
            "        response.message.additional_kwargs[REASONING_KEY] = thought",
            "        pass",
            "llamaindex/test_reasoning.py::test_a_streaming_chat_engine_sends_it_back",
        ),
        (
            "a_pickled_llm_forgets_to_send_thoughts",
            "        return with_reasoning, (plain,)",
            "        return (lambda llm: llm), (plain,)",
            "llamaindex/test_reasoning.py::test_a_pickled_one_still_returns_reasoning",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/replies.py",
        (
            "usage_is_not_told",
            "    extras: dict[str, Any] = _counts(reply.usage) if reply.usage is not None else {}",
            "    extras: dict[str, Any] = {}",
            "llamaindex/test_llm_replies.py::test_an_answer_with_reasoning_comes_whole_with_usage_and_finish_reason",
        ),
        (
            "one_call_gives_all",
            "    calls = message.tool_calls[:1] if one_call else message.tool_calls",
            "    calls = message.tool_calls",
            "llamaindex/test_llm_tools.py::test_without_parallel_calls_only_the_first_is_kept",
        ),
        (
            "arguments_are_rewritten",
            "        block.tool_kwargs = call.arguments  # the text that came: a prefix cache knows no other",
            "        pass",
            "llamaindex/test_llm_tools.py::test_parallel_calls_are_all_kept_with_their_arguments_as_they_came",
        ),
        (
            "bound_parts_are_moved",
            "    if ordered and bound(message):",
            "    if False:",
            "llamaindex/test_llm_tools.py::test_signed_thinking_stays_where_it_came",
        ),
        (
            "thoughts_stay_apart",
            "    if len(thinking) > 1:\n        thinking = [",
            "    if False:\n        thinking = [",
            "llamaindex/test_part_order.py::test_an_order_that_nobody_bound_is_llamaindexs_own",
        ),
    ),
    *_of(
        "../../langchain_ctx/message_lists.py",
        (
            "a_well_formed_call_is_refused",
            "if c.id not in answered and c.parsed() is None]",
            "if c.id not in answered]",
            "langchain/test_history.py::test_tool_rounds_stay_private_until_they_are_whole",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/replies.py",
        (
            "malformed_arguments_are_always_refused",
            "    if malformed_ok:\n",
            "    if False:\n",
            "llamaindex/test_malformed_calls.py::test_an_agent_goes_on_after_a_malformed_call",
        ),
        (
            "a_chunk_without_words_is_shown",
            "        if not (thought or text or chunk.tool_calls):\n            return None\n",
            "",
            "llamaindex/test_llm_tools.py::test_pieces_without_index_or_with_the_name_repeated_stay_one_call",
        ),
        (
            "half_a_character_is_shown",
            '            if "\\ud800" <= piece[-1] <= "\\udbff":',
            "            if False:",
            "llamaindex/test_llm_replies.py::test_a_character_cut_apart_by_two_chunks_arrives_whole",
        ),
        (
            "a_stream_with_one_call_shows_all",
            "[: 1 if self._one_call else None]",
            "[:None]",
            "llamaindex/test_llm_tools.py::test_without_parallel_calls_only_the_first_is_kept",
        ),
        (
            "the_last_delta_repeats_the_text",
            "        text = reply.message.text[len(self._text.text) :]",
            "        text = reply.message.text",
            "llamaindex/test_llm_replies.py::test_chunks_are_cumulative_and_deltas_add_up",
        ),
        (
            "the_last_delta_repeats_the_thought",
            "        thought = reply.message.reasoning[len(self._thinking.text) :]",
            "        thought = reply.message.reasoning",
            "llamaindex/test_llm_replies.py::test_chunks_are_cumulative_and_deltas_add_up",
        ),
        (
            "the_raw_of_a_stream_is_its_last",
            "        final = replace(reply, raw=self._raw or reply.raw)",
            "        final = reply",
            "llamaindex/test_llm_replies.py::test_an_answer_with_reasoning_comes_whole_with_usage_and_finish_reason",
        ),
        (
            "cached_tokens_are_in_the_input_twice",
            "        into = (into or 0) + (read + written if excluded else 0)",
            "        into = (into or 0) + read + written",
            "llamaindex/test_usage_reports.py::test_r1_cached_tokens_are_what_the_service_reported",
        ),
        (
            "cached_tokens_are_left_out_of_the_input",
            "        into = (into or 0) + (read + written if excluded else 0)",
            "        into = into or 0",
            "llamaindex/test_usage_reports.py::test_w9_the_usage_of_a_stream_is_read_in_every_shape",
        ),
        (
            "thoughts_of_gemini_are_free",
            '(_number(fields, "thoughts_token_count") or 0)',
            "0",
            "llamaindex/test_usage_reports.py::test_w9_the_usage_of_a_stream_is_read_in_every_shape",
        ),
        (
            "notes_come_before_the_providers_report",
            "[*told, *own] if notes.keys() & _CACHE_NOTES else [*own, *told]",
            "[*told, *own]",
            "llamaindex/test_usage_reports.py::test_r1_cached_tokens_are_what_the_service_reported",
        ),
    ),
    *_of(
        "../../llamaindex_ctx/tool_rounds.py",
        (
            "a_result_told_as_text_loses_its_picture",
            "    parts += [p for p in message.parts if isinstance(p, MediaPart)]",
            "    pass",
            "llamaindex/test_convert.py::test_a_result_behind_a_reply_that_called_nothing_is_told_by_the_user",
        ),
        (
            "calls_in_kwargs_have_one_shape",
            'name = _first(source, "name", "tool_name")',
            'name = _first(source, "name")',
            "llamaindex/test_call_ids.py::test_calls_and_results_come_back_under_the_same_ids",
        ),
    ),
)


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
    """Returns the text of the file with the change; raises ValueError unless the old text occurs exactly once."""
    text = (root / "shared" / "ctxfold" / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(
            f"{mutant.name}: {mutant.old!r} occurs {count} times in {mutant.file}: correct tests/mutants.py"
        )
    return text.replace(mutant.old, mutant.new)


def problems(mutants: Sequence[Mutant] = MUTANTS) -> list[str]:
    """Returns why mutants cannot be tried: a text that is gone, a change that is none, a test that does not exist."""
    found: list[str] = []
    for mutant in mutants:
        try:
            compile(mutated(mutant), mutant.file, "exec")
        except (OSError, ValueError, SyntaxError) as error:
            found.append(f"{mutant.name}: {error}")
        if mutant.old == mutant.new:
            found.append(f"{mutant.name}: nothing is changed")
        for node in mutant.tests:
            path, _, name = node.partition("::")
            source = ROOT / "tests" / path
            defined = name.split("::")[0]  # a method may be inherited from a suite
            if not source.is_file() or (defined and f" {defined}(" not in source.read_text()):
                found.append(f"{mutant.name}: there is no test {node}")
    return found


def _copied(to: Path) -> Path:
    """Copies the tree and compiles it, so that a run compiles only what its mutant changes; returns the folder."""
    shutil.copytree(ROOT, to, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for name in ("shared", "langchain_ctx", "llamaindex_ctx", "tests/support"):
        compileall.compile_dir(to / name, quiet=2)
    return to


def _run(root: Path, tests: Sequence[str], timeout_s: float | None = None) -> subprocess.CompletedProcess[str]:
    """Runs tests in a copy of the source tree."""
    paths = os.pathsep.join((str(root), str(root / "shared")))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # other plugins take longer to load than most of the tests
    command = [sys.executable, "-m", "pytest", *OPTIONS, *(f"tests/{t}" for t in tests)]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def _try(mutant: Mutant, root: Path) -> tuple[Result, str]:
    """Returns what became of a mutant in the copy at `root`, with the last lines of the tests' output."""
    path = root / "shared" / "ctxfold" / mutant.file
    original, times = path.read_bytes(), path.stat()
    try:
        path.write_text(mutated(mutant, root), encoding="utf-8")
        done = _run(root, mutant.tests, TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "killed", f"by the time-out of {TIMEOUT_S:g} s"
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled from it is valid again
    lines = done.stdout.strip().splitlines()
    last = next((line for line in lines if line.startswith("FAILED")), lines[-1] if lines else done.stderr[-500:])
    results: dict[int, Result] = {0: "survived", 1: "killed"}
    return results.get(done.returncode, "not tried"), last


def _check_unchanged(mutants: Sequence[Mutant], root: Path) -> None:
    """Exits unless the tests pass without any change: a test that fails anyway kills nothing."""
    done = _run(root, sorted({test for mutant in mutants for test in mutant.tests}))
    if done.returncode:
        sys.exit(f"the tests do not pass on the unchanged sources:\n{done.stdout[-3_000:]}{done.stderr[-1_000:]}")


def _results(mutants: Sequence[Mutant], workers: int) -> Iterator[tuple[Mutant, Result, str]]:
    """Tries the mutants, as many at once as there are workers; yields what became of them in their order."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            copies.put(_copied(Path(folder, str(number))))

        def tried(mutant: Mutant) -> tuple[Mutant, Result, str]:
            root = copies.get()
            try:
                return mutant, *_try(mutant, root)
            finally:
                copies.put(root)

        _check_unchanged(mutants, Path(folder, "0"))
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(tried, mutants)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to try (default: all)")
    parser.add_argument("--workers", type=int, default=2, help="mutants tried at once (default: 2)")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - {m.name for m in MUTANTS})
    if unknown:
        parser.error(f"there is no mutant {', '.join(unknown)}")
    chosen = [m for m in MUTANTS if not options.names or m.name in options.names]
    if wrong := problems(chosen):
        sys.exit("\n".join(wrong))
    start = time.monotonic()
    results: list[Result] = []
    for mutant, result, line in _results(chosen, options.workers):
        results.append(result)
        print(f"{result:9} {mutant.file:26} {mutant.name}: {line}"[:200], flush=True)
    killed = results.count("killed")
    print(f"{killed} of {len(results)} killed ({killed / len(results):.0%}) in {time.monotonic() - start:.0f} s")
    return 0 if killed >= SHARE * len(results) and "not tried" not in results else 1


if __name__ == "__main__":
    sys.exit(main())
