"""Mutants of the search in archived messages."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, of

MUTANTS: tuple[Mutant, ...] = (
    *of(
        "retrieval/loss.py",
        (
            "a_loss_is_looked_for_again_and_again",
            "return questions[0] if questions and missing[1:] != [True] else",
            "return questions[0] if questions else",
            "retrieval/test_loss.py::test_it_does_so_once",
        ),
        (
            "a_denial_of_anything_is_a_loss",
            "any(d.search(s) and n.search(s) for s in beginning",
            "any(d.search(s) for s in beginning",
            "retrieval/test_loss.py::test_what_is_not_there_for_another_reason_is_no_loss",
        ),
        (
            "the_whole_of_a_reply_counts",
            "sentences(reply[: 4 * MOST_CHARS])[:MOST_SENTENCES]",
            "sentences(reply)",
            "retrieval/test_loss.py::test_only_the_beginning_of_a_reply_counts",
        ),
    ),
    *of(
        "engine/recall.py",
        (
            "a_loss_gets_no_more_room",
            '"recall_tokens": 2 * rules.recall_tokens}',
            '"recall_tokens": rules.recall_tokens}',
            "retrieval/test_loss.py::test_it_may_take_twice_the_share",
        ),
        (
            "only_the_lost_question_is_asked",
            'TextPart(f"{lost}\\n{question.text}"),))',
            'TextPart(f"{lost}\\n"),))',
            "retrieval/test_loss.py::test_its_own_question_is_answered_too",
        ),
    ),
    *of(
        "engine/engine.py",
        (
            "a_loss_is_told_before_anything_was_compacted",
            "for m in messages if may_recall and is_final(m)",
            "for m in messages if is_final(m)",
            "retrieval/test_loss.py::test_subscribers_learn_of_it",
        ),
    ),
    *of(
        "engine/archive.py",
        (
            "a_message_that_was_imported_counts_twice",
            "for seq, message in shown if seq not in archived]",
            "for seq, message in shown]",
            "transcripts/test_readers.py::test_a_search_reads_no_log_of_an_imported_session",
        ),
        (
            "a_message_is_found_by_what_it_said_before",
            "if entry is not None and entry.seq != seq:",
            "if entry is not None and entry.seq < 0:",
            "transcripts/test_readers.py::test_a_search_reads_no_log_of_an_imported_session",
        ),
    ),
    *of(
        "retrieval/bm25.py",
        (
            "common_terms_of_a_short_session_are_not_read_in_full",
            "guessed[term] <= max(FEW, documents // RARE)",
            "guessed[term] <= documents // RARE",
            "retrieval/test_recall.py::test_terms_that_many_messages_of_a_short_session_have_are_read_in_full",
        ),
        (
            "short_messages_with_rough_stems_lead",
            "return weights | dict.fromkeys(missing, 0.0)",
            "return weights",
            "retrieval/test_languages.py::test_a_search_for_one_word_is_not_led_by_short_messages_with_rough_stems",
        ),
        (
            "of_equal_hits_the_older_comes_first",
            "seqs = sorted(scores, reverse=True)",
            "seqs = sorted(scores)",
            "retrieval/test_archive.py::test_of_equal_hits_the_newer_comes_first",
        ),
    ),
    *of(
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
            "AGE_WEIGHT = 0.04",
            "AGE_WEIGHT = 0.2",
            "retrieval/test_recall.py::test_of_messages_that_match_alike_the_newer_is_the_better",
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
            "age_sinks_what_matches",
            "        if score >= floor\n    }",
            "        if score + AGE_WEIGHT * (of_best - log(1 + (newest - seq) / recent)) >= floor\n    }",
            "retrieval/test_recall.py::test_age_sinks_no_old_match_of_a_question_in_many_words",
        ),
        (
            "an_aside_weighs_as_much_as_the_question",
            "ASIDE_WEIGHT = 0.25",
            "ASIDE_WEIGHT = 1.0",
            "retrieval/test_recall.py::test_the_sentence_that_asks_weighs_more_than_what_stands_around_it",
        ),
    ),
    *of(
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
    *of(
        "index/cache.py",
        (
            "sentences_get_a_vector_together",
            "CHUNK_CHARS = 60",
            "CHUNK_CHARS = 1_000",
            "retrieval/test_semantic.py::test_a_sentence_counts_by_itself_however_much_stands_around_it",
        ),
        (
            "a_long_sentence_gets_one_vector",
            "PIECE_BYTES, PIECES = 400, 64",
            "PIECE_BYTES, PIECES = 4_000, 64",
            "retrieval/test_semantic.py::test_an_embedder_gets_no_text_longer_than_what_models_read",
        ),
    ),
    *of(
        "engine/recall.py",
        (
            "the_chat_around_a_question_is_embedded_with_it",
            "_near(session, asked_in(question.text), visible, older)",
            "_near(session, question.text, visible, older)",
            "retrieval/test_semantic.py::test_the_sentence_that_asks_is_embedded_without_the_chat_around_it",
        ),
    ),
    *of(
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
        (
            "a_fork_has_the_mark_of_the_whole_log",
            "_encoded_mark(min(upto, head), ",
            "_encoded_mark(upto, ",
            "retrieval/test_kept_vectors.py::test_r2_a_fork_embeds_nothing_again",
        ),
        (
            "vectors_of_visible_messages_are_forgotten",
            "    yield from _keep(work, {seq for seq, _ in new}, upto=0)\n",
            "",
            "retrieval/test_kept_vectors.py::test_r2_the_vectors_of_older_visible_messages_are_kept",
        ),
    ),
)
