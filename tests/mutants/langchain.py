"""Mutants of the LangChain package."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, of

MUTANTS: tuple[Mutant, ...] = (
    *of(
        "../../langchain_ctx/summarizer.py",
        (
            "a_thinking_summariser_is_limited",
            " and not may_think(model)",
            "",
            "langchain/test_summarizer.py::test_the_limit_of_a_summary_does_not_cut_a_models_thinking",
        ),
    ),
    *of(
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
    *of(
        "../../langchain_ctx/callbacks.py",
        (
            "a_handler_that_langchain_adds_is_hidden",
            "return handler if takes_none or added else _WithoutTokens(handler)",
            "return _WithoutTokens(handler)",
            "langchain/test_summary_usage.py::test_h3_each_summary_is_counted_and_traced_once",
        ),
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
    *of(
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
        (
            "a_well_formed_call_is_refused",
            "if c.id not in answered and c.parsed() is None]",
            "if c.id not in answered]",
            "langchain/test_history.py::test_tool_rounds_stay_private_until_they_are_whole",
        ),
    ),
    *of(
        "../../langchain_ctx/active_model.py",
        (
            "a_callers_model_says_nothing_of_its_service",
            "return BackendCapabilities() if caller is None else caller.capabilities",
            "return BackendCapabilities()",
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
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
    *of(
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
    *of(
        "../../langchain_ctx/chat_calls.py",
        (
            "any_tool_is_a_demand",
            'if forced == "required" and row is not None',
            'if forced == "none" and row is not None',
            "langchain/test_chat_features.py::test_a_model_that_cannot_be_forced_chooses_between_tools_and_is_refused_one",
        ),
    ),
    *of(
        "../../langchain_ctx/refusals.py",
        (
            "a_reply_without_the_call_is_none",
            "    if not calls:\n",
            "    if False:\n",
            "langchain/test_chat_features.py::test_structured_output_of_a_model_that_cannot_be_forced",
        ),
    ),
    *of(
        "../../langchain_ctx/models.py",
        (
            "an_agent_forces_models_that_cannot_be",
            "rules.forced_tool_choice is False and row.wire in _SCHEMA_WIRES",
            "False",
            "langchain/test_chat_features.py::test_an_agent_has_the_provider_enforce_the_schema_of_a_model_that_cannot_be_forced",
        ),
    ),
    *of(
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
    *of(
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
    *of(
        "../../langchain_ctx/content.py",
        (
            "items_keep_ids_that_demand_their_reasoning",
            'refers = [p[0] in ("t", "c") or (p[0] == "x" and p[1].get("type") == "function_call") for p in kept]',
            "refers = [False for p in kept]",
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
    *of(
        "../../langchain_ctx/messages.py",
        (
            "signatures_of_calls_stay",
            "if k not in _BOUND_KWARGS}",
            "if k}",
            "faces/test_bound_thoughts.py::test_what_another_service_refused_stays_out",
        ),
    ),
    *of(
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
    *of(
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
    *of(
        "../../langchain_ctx/history.py",
        (
            "a_compacted_history_shows_bound_thoughts",
            "without_thoughts(m) if binds_thoughts(m.model) else m for m",
            "m for m",
            "faces/test_bound_thoughts.py::test_what_does_not_know_its_model_leaves_out_thoughts_of_models_that_bind_them",
        ),
        (
            "a_history_stops_at_an_id_that_comes_twice",
            "except MessageConflictError:",
            "except StoreError:",
            "langchain/test_history.py",
        ),
    ),
)
