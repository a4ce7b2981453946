"""Mutants of open sessions, streams, memory, files and everything else."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, of

MUTANTS: tuple[Mutant, ...] = (
    *of(
        "cli/mcp.py",
        (
            "an_answer_of_mcp_arrives_twice",
            "structured_output=False",
            "structured_output=None",
            "cli/test_mcp.py::test_p3_an_answer_arrives_once",
        ),
    ),
    *of(
        "inspect/explain.py",
        (
            "what_gave_way_is_told_as_sent",
            "if e.seq != seq and e.number not in hidden)",
            "if e.seq != seq)",
            "engine/test_earlier_windows.py::test_every_request_is_told_as_it_was_sent",
        ),
        (
            "an_open_turns_reply_is_told_as_sent",
            "turn=tuple(e for e in view.turn if e.seq != seq)",
            "turn=view.turn",
            "engine/test_earlier_windows.py::test_the_requests_of_a_turn_that_is_open",
        ),
    ),
    *of(
        "telemetry.py",
        (
            "the_provider_of_a_langchain_model_has_another_name",
            '"google_genai": "gcp.gemini"',
            '"google_genai": "google"',
            "engine/test_tracing.py::test_p2_spans_name_the_provider_of_a_langchain_model",
        ),
    ),
    *of(
        "session/parts.py",
        (
            "a_text_is_asked_like_a_turn",
            "if not is_a(turn_input, TurnInput):",
            "if False:",
            "engine/test_mistakes.py::test_calls",
        ),
    ),
    *of(
        "state.py",
        (
            "an_earlier_window_has_what_came_later",
            "state = yield from _fold_from(key, at, frozenset(), ports, upto=seq)",
            "state = yield from _fold_from(key, at, frozenset(), ports)",
            "engine/test_earlier_windows.py::test_another_process_tells_the_same",
        ),
        (
            "the_names_of_media_count_in_the_length",
            "return counts, length",
            "return counts, counts.total()",
            "compaction/test_media_are_named.py::test_its_name_does_not_move_what_other_questions_find",
        ),
        (
            "a_picture_is_not_in_the_index",
            "for p in message.parts if isinstance(p, MediaPart))]",
            "for p in () if isinstance(p, MediaPart))]",
            "compaction/test_media_are_named.py::test_it_is_named_in_transcript_summary_recall_and_search",
        ),
        (
            "an_excerpt_is_not_indexed_with_its_message",
            "expect=head, documents=(*documents, *placed)",
            "expect=head, documents=documents",
            "retrieval/test_recall_beside_excerpts.py::test_an_excerpt_is_found_whenever_the_process_has_ended",
        ),
        (
            "an_excerpt_is_indexed_where_it_would_stand_without_what_another_thread_stores",
            "if expect is None and (yield from StoreCall(Store.find, self.key, [d.id for d in drafts])):",
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
            "        while self.state.stale:\n",
            "        while self.state.stale and self.erasures < 0:\n",
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
            "self.append(drafts, expect=head, documents=documents())",
            "append(session, drafts, ports, documents=documents())",
            "engine/test_session.py::test_edits_are_decided_anew_on_the_new_head engine/test_session.py::test_pins_have_a_budget",
        ),
        (
            "a_closed_turn_takes_messages",
            "            closed = turn_id in self.state.closed\n",
            "            closed = turn_id in self.state.open and turn_id in self.state.closed\n",
            "llamaindex/test_overlapping_requests.py::test_a_question_that_was_taken_back_elsewhere_is_asked_again",
        ),
        (
            "rules_of_one_window_are_taken_for_those_of_another",
            "self.opening_policy, context_window)",
            "self.opening_policy)",
            "engine/test_request_window.py::test_a_narrower_window_has_the_session_compacted_until_the_request_fits",
        ),
        (
            "a_snapshot_of_a_newer_release_stops_its_session",
            "except StoreFormatError:  # of a newer release",
            "except HeadMovedError:  # of a newer release",
            "stores/test_newer_records.py",
        ),
        (
            "the_question_of_a_run_gives_way_to_its_rounds",
            "return (*self.state.pins, *self.asked_ids)",
            "return (*self.state.pins,)",
            "llamaindex/test_run_questions.py",
        ),
        (
            "recall_keeps_erased_passages",
            "self.passage_cache, self.vectors = PassageCache(), Vectors()",
            "self.vectors = Vectors()",
            "erasure/test_erase_meanwhile.py::test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased",
        ),
        (
            "vectors_of_an_erased_log_stay",
            "self.passage_cache, self.vectors = PassageCache(), Vectors()",
            "self.passage_cache = PassageCache()",
            "retrieval/test_kept_vectors.py",
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
            "                self.state = state\n                self.forget_texts()\n            return",
            "                self.state = state\n            return",
            "erasure/test_erase_meanwhile.py::test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased",
        ),
        (
            "texts_stay_in_memory_after_an_erasure_elsewhere",
            "            if any(isinstance(r.body, Erased) for r in records):\n                self.forget_texts()\n",
            "",
            "erasure/test_erase_meanwhile.py::test_a_worker_keeps_nothing_in_memory_of_what_another_has_erased",
        ),
        (
            "an_older_state_wins_after_a_reload",
            "                if state.head >= self.state.head:\n                    self.state = state",
            "                self.state = state",
            "engine/test_undo.py::test_a_session_that_is_read_anew_keeps_what_another_thread_has_stored_meanwhile",
        ),
    ),
    *of(
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
        (
            "the_fields_of_a_media_part_may_be_a_list",
            "    if sent is not None and not isinstance(value, sent):",
            "    if False:",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
    ),
    *of(
        "protocols.py",
        (
            "the_backends_own_model_speaks_for_all",
            "return declared.of_model(model) if model and declared.of_model is not None else declared",
            "return declared",
            "wire/test_model_switch.py",
        ),
    ),
    *of(
        "effects.py",
        (
            "the_lease_is_kept_after_an_error",
            "    except BaseException:\n        yield from StoreCall(Store.release, key, name, holder)\n        raise",
            "    except BaseException:\n        raise",
            "erasure/test_retention.py::test_one_worker_at_a_time",
        ),
    ),
    *of(
        "policy/settings.py",
        (
            "a_summary_takes_a_fifth_of_every_budget",
            "max(SMALL_SUMMARY_TOKENS, 2 * (budget_tokens - SMALL_TOKENS) // 5)",
            "max(budget_tokens // 5, 2 * (budget_tokens - SMALL_TOKENS) // 5)",
            "engine/test_budget.py::test_a_summary_leaves_recall_its_room_in_a_small_window",
        ),
    ),
    *of(
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
        (
            "a_fallback_is_named_after_who_declined",
            "(self._model is None or chunk.hands_over)",
            "self._model is None",
            "wire/test_silent_replies.py::test_w9_a_fallback_names_the_model_that_wrote",
        ),
    ),
    *of(
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
    *of(
        "connect.py",
        (
            "a_newer_model_is_never_asked_again",
            "reasoning_optional=bound or row.reasoning_out.optional",
            "reasoning_optional=row.reasoning_out.optional",
            "faces/test_bound_thoughts.py::test_a_model_that_thinks_although_nobody_says_so_goes_on",
        ),
    ),
    *of(
        "policy/triggers.py",
        (
            "triggers_within_others_ignore_idle_time",
            "return isinstance(trigger, kinds) or any(_contains(part, *kinds) for part in parts)",
            "return isinstance(trigger, kinds)",
            "compaction/test_strategies.py::test_a_cold_cache_is_used_before_the_next_turn",
        ),
    ),
    *of(
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
            "own = [n for n in reversed(nodes) if n.session == session.key.session]",
            "own = [*reversed(nodes)]",
            "sections/test_memory_items.py::test_the_trees_of_two_sessions_are_two",
        ),
    ),
    *of(
        "session/files.py",
        (
            "an_import_believes_that_nothing_was_stored_since_it_looked",
            "expect=head)",
            "expect=session.state.head)",
            "retrieval/test_recall_beside_excerpts.py::test_an_excerpt_is_found_where_another_thread_stores_a_part_of_a_file",
        ),
        (
            "an_import_leaves_the_turn_that_it_completes_open",
            'drafts.append(session.closing(place, "completed"))',
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
            "io/test_transfer.py::test_a_file_that_could_be_written_in_part_only_leaves_nothing_behind",
        ),
        (
            "an_import_takes_an_undone_edit_into_its_snapshots",
            "if isinstance(record.body, Undone):",
            "if False:",
            "io/test_transfer.py::test_what_was_undone_is_undone_in_the_copy",
        ),
        (
            "no_trigger_is_asked_after_an_import",
            "        yield from engine.fitter.maintain(session, session.stage())\n",
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
    *of(
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
    *of(
        "session/parts.py",
        (
            "a_session_forgets_what_it_does_not_see",
            "[i for i in ids if i in known]",
            "ids",
            "sections/test_memory_items.py::test_sessions_see_what_is_shared_and_nothing_of_another_owner",
        ),
    ),
    *of(
        "memory/store.py",
        (
            "the_digests_of_others_are_those_of_the_session_too",
            "items = [i for i in items if i.session != key.session]",
            "pass",
            "sections/test_memory_items.py::test_other_sessions_digests_are_a_section_of_their_own",
        ),
    ),
    *of(
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
    *of(
        "tokens/text.py",
        (
            "the_summary_of_a_service_counts_as_our_text",
            "return total if provided is None else max(total, MESSAGE_OVERHEAD_TOKENS + provided.tokens)",
            "return total",
            "engine/test_budget.py::test_a_summary_that_a_service_wrote_counts_as_what_is_sent_of_it",
        ),
    ),
    *of(
        "tokens/text.py",
        (
            "a_corrupt_table_of_an_encoding_is_used",
            "        if _is_intact(file, data):\n            return data",
            "        if True:\n            return data",
            "engine/test_tokens.py::test_a_corrupt_file_is_passed_over",
        ),
    ),
    *of(
        "session/service.py",
        (
            "a_full_store_is_raised_and_no_outcome",
            "    except StoreError as error:\n",
            "    except ZeroDivisionError as error:\n",
            "engine/test_service.py::test_compact_context_answers_with_a_value",
        ),
        (
            "an_adaptive_window_waits_a_turn_longer",
            "session.state.turns >= ADAPTIVE_TURNS",
            "session.state.turns > ADAPTIVE_TURNS",
            "engine/test_service.py::test_memory_first_shows_the_newest_two_and_recalls_the_rest",
        ),
        (
            "tools_do_not_count_before_a_compaction_ahead",
            "if stage.view.tokens + session.overhead_tokens <= threshold_ratio",
            "if stage.view.tokens <= threshold_ratio",
            "engine/test_service.py::test_proactive_compression_counts_the_open_turn_and_the_tools",
        ),
        (
            "rounds_do_not_count_before_a_compaction_ahead",
            "    stage = session.stage(turn_id)\n    if stage.view",
            "    stage = session.stage()\n    if stage.view",
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
    *of(
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
            "        if depth > most:",
            "        if depth > 10**6:",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
    ),
    *of(
        "validation.py",
        (
            "a_part_may_be_as_deep_as_a_request",
            "most: int = MAX_JSON_DEPTH - FRAME_DEPTH",
            "most: int = MAX_JSON_DEPTH",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
    ),
)
