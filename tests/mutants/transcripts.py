"""Mutants of the readers of other programs' transcripts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, of

READERS = "transcripts/test_readers.py"
READ = f"{READERS}::test_a_sample_is_read_as_it_was_said"
FUZZ = "transcripts/test_fuzz.py::test_a_field_under_another_name_loses_no_text"

MUTANTS: tuple[Mutant, ...] = (
    *of(
        "transcripts/values.py",
        (
            "a_damaged_archive_is_a_traceback",
            "except _UNREADABLE as error:",
            "except EOFError as error:",
            f"{READERS}::test_a_damaged_archive",
        ),
        (
            "a_number_with_too_many_digits_is_a_traceback",
            "except (RecursionError, ValueError) as error:",
            "except RecursionError as error:",
            f"{READERS}::test_what_is_no_transcript",
        ),
    ),
    *of(
        "transcripts/conversation.py",
        (
            "a_field_with_text_that_a_reader_does_not_know_is_dropped",
            "if (text := worded(value[key], key)) is not None:",
            "if False:",
            FUZZ,
        ),
        (
            "a_text_under_another_name_is_emptied",
            "if key not in value or not isinstance(held, kind):",
            "if False:",
            FUZZ,
        ),
        (
            "the_usage_of_a_reply_on_several_lines_adds_up",
            "(replace(self.rows[before][0], usage=None), self.rows[before][1])",
            "self.rows[before]",
            f"{READERS}::test_a_reply_on_several_lines_has_one_usage",
        ),
        (
            "results_of_parallel_calls_stay_where_they_came",
            "with_results_together(with_known_calls(marked, ended=True), across=True)",
            "with_known_calls(marked, ended=True)",
            READ,
        ),
        (
            "a_call_without_its_result_makes_a_session_illegal",
            "for call in waiting.values():",
            "for call in ():",
            READ,
        ),
        (
            "messages_have_the_time_of_the_import",
            "            known = known if at_s is None else at_s\n",
            "            known = None\n",
            f"{READERS}::test_times_of_every_kind",
        ),
    ),
    *of(
        "transcripts/coding_agents.py",
        (
            "results_of_parallel_calls_are_lost_with_their_branch",
            "if results and results <= open_calls:",
            "if False:",
            READ,
        ),
        (
            "a_compaction_hides_what_was_before",
            'root = "parentUuid" in line and not parent and line.get("subtype") != "compact_boundary"',
            'root = "parentUuid" in line and not parent',
            READ,
        ),
        (
            "what_the_program_injected_is_the_users",
            '    return [{**b, "text": text} if "text" in b else {**b} for b, text in found if text.strip()]',
            "    return [{**b} for b, text in found]",
            READ,
        ),
        (
            "turns_that_were_taken_back_stay",
            "del builder.rows[start:], turns[len(turns) - count :]",
            "pass",
            READ,
        ),
        (
            "the_newest_turns_stand_twice_behind_a_compression",
            "for name, line in newest if name not in again}",
            "for name, line in newest}",
            READ,
        ),
    ),
    *of(
        "transcripts/chat_exports.py",
        (
            "the_last_child_is_the_current_one",
            "path = path_to(leaf, parents)\n    messages",
            "path = path_to(next(reversed(parents)), parents)\n    messages",
            READ,
        ),
        (
            "custom_instructions_are_the_users_words",
            'return injected or (hidden and as_dict(message.get("author")).get("role") in ("system", "user"))',
            "return False",
            READ,
        ),
    ),
    *of(
        "transcripts/chat_messages.py",
        (
            "each_request_repeats_the_history",
            "    if _holds(after, before):\n        builder.rows = more.rows",
            "    if False:\n        pass",
            READ,
        ),
        (
            "a_block_without_a_type_is_dropped",
            "    if not kind:\n        raise",
            "    if False:\n        raise",
            FUZZ,
        ),
    ),
    *of(
        "transcripts/values.py",
        (
            "a_file_that_is_cut_off_ends_quietly",
            'elif ended and unit != "item":',
            "elif ended:",
            f"{READERS}::test_a_file_that_is_cut_off_is_refused_by_its_number",
        ),
        (
            "a_file_is_read_whole",
            "chunk = file.read(max(_CHUNK, len(text) - at))",
            "chunk = file.read()",
            "transcripts/test_written_by_packages.py::test_a_large_export_is_read_one_conversation_at_a_time",
        ),
    ),
    *of(
        "session/files.py",
        (
            "a_rewound_conversation_goes_on_behind_the_other_branch",
            "if known and names and (len(known) != max(known) or newest != [lines[len(known) - 1].message.id]):",
            "if False:",
            f"{READERS}::test_a_session_that_grew_adds_what_is_new_and_one_that_was_rewound_is_refused",
        ),
    ),
    *of(
        "cli/writing.py",
        (
            "conversations_of_one_file_share_a_session",
            "target = name if count == 1 else",
            "target = name if count else",
            "cli/test_import.py::test_several_conversations_are_several_sessions",
        ),
    ),
)
