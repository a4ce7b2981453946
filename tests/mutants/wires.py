"""Mutants of the model services and their wires."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, of

MUTANTS: tuple[Mutant, ...] = (
    *of(
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
    *of(
        "backends/anthropic/request.py",
        (
            "a_schema_of_the_answer_replaces_the_effort",
            'config = {**as_dict(body.get("output_config")), **as_dict(',
            "config = {**as_dict(",
            "langchain/test_wire_agents.py::test_an_agent_that_answers_in_a_schema",
        ),
        (
            "calls_of_several_rounds_share_an_id",
            "    messages = with_unique_calls(messages)\n",
            "",
            "wire/test_model_switch.py::test_calls_with_the_same_id_have_ids_of_their_own_where_the_service_wants_it",
        ),
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
        (
            "a_result_names_no_toolset",
            '            block["toolset_name"] = toolsets[block["tool_use_id"]]',
            "            pass",
            "wire/test_small_print.py::test_w11_the_toolset_of_a_call_goes_back_on_call_and_result",
        ),
        (
            "a_round_of_many_calls_is_out_of_the_caches_sight",
            "        _last(blocks[epoch:before]),\n",
            "",
            "wire/test_prompt_cache.py::test_r3_after_a_round_of_any_size_everything_that_was_sent_is_read_from_the_cache",
        ),
    ),
    *of(
        "backends/http_backend.py",
        (
            "a_model_without_a_provider_is_asked_at_this_machine",
            "if not self._has_address:",
            "if False:",
            "engine/test_mistakes.py::test_services_that_cannot_be_used",
        ),
        (
            "a_key_that_a_service_quotes_stays_in_its_error",
            "            text = text.replace(secret, HIDDEN)\n",
            "            pass\n",
            "wire/test_secrets.py::test_no_credential_shows_on_any_wire",
        ),
    ),
    *of(
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
    *of(
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
    *of(
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
    *of(
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
        (
            "a_model_that_thinks_can_be_forced",
            'return not thinks(self, thinking) if forced == "not_while_thinking" else forced',
            "return bool(forced)",
            "langchain/test_chat_features.py::test_a_model_that_cannot_be_forced_chooses_between_tools_and_is_refused_one",
        ),
        (
            "arguments_that_python_reads_go_out_as_an_object",
            "    value = json_object(call.arguments, strict_json)\n",
            "    value = json_object(call.arguments)\n",
            "wire/test_hostile_values.py::test_v1_a_stored_part_is_refused_when_it_is_added_or_every_request_with_it_is_accepted",
        ),
    ),
    *of(
        "backends/anthropic/backend.py",
        (
            "a_compaction_block_goes_without_its_beta",
            '        kinds += [SUMMARIZE if "signature" in block else COMPACT for block in blocks]  # known under the same names\n',
            "        pass\n",
            "wire/test_provider_compaction.py::test_forty_turns_over_three_summaries_then_the_service_is_gone",
        ),
    ),
    *of(
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
    *of(
        "backends/errors.py",
        (
            "refused_reasoning_of_a_client_without_a_status_is_any_failure",
            'if classified.kind in ("context_overflow", "reasoning_replay"):',
            'if classified.kind == "context_overflow":',
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
    ),
    *of(
        "backends/gemini/jsonl.py",
        (
            "calls_of_one_function_share_an_id",
            'f"{name}_{names[name]}"',
            "name",
            "wire/test_native_jsonl.py::test_calls_of_gemini_without_ids_find_their_responses",
        ),
    ),
    *of(
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
    *of(
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
    *of(
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
    *of(
        "backends/response_parser.py",
        (
            "a_silent_turn_is_asked_again",
            '        elif self.answered or (self._finish == "stop" and self.may_say_nothing):',
            "        elif self.answered:",
            "wire/test_silent_replies.py::test_w6_a_turn_that_ends_without_text_is_an_answer_once",
        ),
    ),
    *of(
        "backends/anthropic/parse.py",
        (
            "an_input_of_none_is_taken_at_its_word",
            "        if not any(fields.get(name) for name in _INPUT):",
            "        if False:",
            "wire/test_silent_replies.py::test_w9_a_last_event_without_input_does_not_take_it_back",
        ),
    ),
    *of(
        "backends/converse/parse.py",
        (
            "a_citation_of_converse_is_dropped",
            '            block.citations.append(delta["citation"])',
            "            pass",
            "wire/test_silent_replies.py::test_w7_converse_keeps_citations_and_images_and_sends_them_back",
        ),
    ),
    *of(
        "backends/gemini/parse.py",
        (
            "tokens_of_geminis_tools_are_free",
            "    return usage + Usage(tools) if usage",
            "    return None if usage",
            "wire/test_small_print.py::test_w11_tokens_of_geminis_own_tools_are_input",
        ),
    ),
    *of(
        "backends/eventstream.py",
        (
            "a_damaged_frame_is_not_tried_again",
            'with a wrong checksum", "connection")',
            'with a wrong checksum")',
            "wire/test_small_print.py::test_w11_a_wrong_checksum_of_converse_is_tried_again",
        ),
    ),
)
