"""Mutants of the databases."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, of

_KEYS = "stores/test_encrypted_keys.py::"

MUTANTS: tuple[Mutant, ...] = (
    *of(
        "stores/sealing.py",
        (
            "base64_opens_with_other_last_bits",
            "if isinstance(sealed, str) and _text(data) != sealed[ID_CHARS:]:",
            "if not data:",
            f"{_KEYS}test_a_changed_bit_is_an_error",
        ),
        (
            "a_master_key_of_any_length_is_taken",
            "if len(key) != KEY_BYTES or not",
            "if not key or not",
            f"{_KEYS}test_a_key_file",
        ),
        (
            "the_first_line_of_a_key_file_is_in_use",
            "rows[-1][0] if name is None",
            "rows[0][0] if name is None",
            f"{_KEYS}test_rotation_wraps_every_key_anew",
        ),
        (
            "terms_are_hashed_alike_for_all_owners",
            'blake2b(key=_derived(secret, f"ctxfold hashes {owner}"), digest_size=18)',
            "blake2b(digest_size=18)",
            f"{_KEYS}test_the_statistics_that_are_left_are_those_of_the_docs",
        ),
        (
            "terms_are_stored_as_they_are",
            'return self.hashed(term)[:TERM_CHARS] if term else ""',
            "return term",
            f"{_KEYS}test_the_statistics_that_are_left_are_those_of_the_docs",
        ),
    ),
    *of(
        "stores/encrypted.py",
        (
            "two_workers_make_two_keys_of_an_owner",
            'Sealed("key", OwnerKey(secret, owner).id,',
            'Sealed("key", "key" if OwnerKey(secret, owner) else "",',
            "stores/test_encrypted.py::TestSqlite::test_append_and_read",
        ),
        (
            "a_rotation_misses_an_owner_who_is_just_begun",
            "            self._rewrap(owner, sealed, secret)  #",
            "            #",
            f"{_KEYS}test_an_owner_who_is_begun_during_a_rotation_is_under_the_new_key",
        ),
        (
            "a_key_that_was_wrapped_anew_is_not_read_again",
            "                if self._record(owner) == stored:\n                    raise\n",
            "                raise\n",
            f"{_KEYS}test_a_worker_reads_again_what_was_wrapped_anew_meanwhile",
        ),
        (
            "an_erased_key_goes_on",
            "        if (stored := self._stored(owner)) is not None and stored.id != key.id:\n            yield stored",
            "        if (stored := self._keys.get(owner)) is not None and stored.id != key.id:\n            yield stored",
            f"{_KEYS}test_a_worker_with_the_old_key_finds_the_new_one",
        ),
        (
            "a_new_session_may_be_left_under_an_erased_key",
            "            if ids or self._still(owner_key, place):",
            "            if ids or place:",
            f"{_KEYS}test_an_owner_who_is_erased_in_the_middle_of_an_append_keeps_no_dead_session",
        ),
        (
            "names_are_never_hidden",
            "if not self._own.hides_names or not name:",
            "if self._own.hides_names or not name:",
            f"{_KEYS}test_names_are_hidden_or_not_from_the_beginning",
        ),
        (
            "an_erased_record_is_told_from_memory",
            "is not None and newest[0] == record:",
            "is not None and newest[0].id == record.id:",
            f"{_KEYS}test_another_worker_s_erasure_of_a_message_is_seen",
        ),
        (
            "plain_sessions_are_taken_for_encrypted_ones",
            "        if names and KEY not in names and STORE not in names:",
            "        if not names and KEY in names:",
            f"{_KEYS}test_a_plain_store_is_not_taken_for_an_encrypted_one",
        ),
        (
            "an_own_name_is_given_to_users",
            "        if owner == STORE or session == KEY:",
            "        if owner == STORE and session == KEY:",
            f"{_KEYS}test_names_of_its_own_and_long_ones_are_refused",
        ),
        (
            "an_erasure_keeps_the_items_that_were_learnt",
            "ids=tuple(key.seal(name, place.owner) for name in change.ids),",
            "ids=change.ids,",
            f"{_KEYS}test_another_worker_s_erasure_of_a_message_is_seen",
        ),
        (
            "rotation_leaves_the_store_s_own_key",
            "        for owner in {STORE, *places}:",
            "        for owner in places:",
            f"{_KEYS}test_rotation_wraps_every_key_anew",
        ),
    ),
    *of(
        "history/log.py",
        (
            "an_encrypted_session_is_read_as_an_empty_one",
            '                raise StoreFormatError(f"session {self.key.session!r} is encrypted',
            '                print(f"session {self.key.session!r} is encrypted',
            f"{_KEYS}test_an_encrypted_store_is_not_taken_for_a_plain_one",
        ),
    ),
    *of(
        "state.py",
        (
            "an_encrypted_snapshot_is_damage",
            "isinstance(record.body, SnapshotTaken) else NEWER_SNAPSHOT)",
            'isinstance(record.body, SnapshotTaken) else "")',
            f"{_KEYS}test_an_encrypted_store_is_not_taken_for_a_plain_one",
        ),
    ),
    *of(
        "stores/sql_rows.py",
        (
            "an_open_reader_reads_on_in_an_erased_log",
            'f"(SELECT session, head FROM ctxfold_sessions WHERE owner = {self.mark})",',
            'f"(SELECT session, -1 FROM ctxfold_sessions WHERE owner = {self.mark})",',
            "erasure/test_retention.py::test_an_erasure_of_an_owner_that_ends_between_its_batches_leaves_nothing_in_sight",
        ),
        (
            "sql_erases_from_a_log_that_went_on",
            "        if head != change.expect:\n",
            "        if head < change.expect:\n",
            "stores/test_store_suite.py::TestSqlite::test_erase_does_nothing_once_a_log_has_grown",
        ),
    ),
    *of(
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
        (
            "leases_of_an_erased_owner_stay",
            "            keys = (*self._logs, *(key for key, _ in self._leases))",
            "            keys = tuple(self._logs)",
            "stores/test_store_suite.py::TestMemoryStore",
        ),
    ),
    *of(
        "stores/base.py",
        (
            "a_cancelled_append_is_left_alone",
            "            while not done.done():\n",
            "            while not done.done() and not work:\n",
            "stores/test_sql_store.py::test_a_cancelled_question_that_waited_for_a_lock_leaves_no_turn_behind",
        ),
    ),
    *of(
        "stores/sql_tables.py",
        (
            "a_server_that_is_away_is_not_waited_for",
            "again = awaited or (",
            "again = (",
            "stores/test_store_failover.py::test_a_server_that_comes_back_is_waited_for",
        ),
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
            "again = awaited or (attempt < tries and is_passing(error))",
            "again = awaited",
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
            "erasure/test_retention.py::test_an_erasure_of_an_owner_that_ends_between_its_batches_leaves_nothing_in_sight",
        ),
    ),
    *of(
        "stores/sql_engine.py",
        (
            "a_connection_to_a_primary_that_was_is_kept",
            'or getattr(error, "sqlstate", None) == _READ_ONLY',
            "or not _READ_ONLY",
            "stores/test_store_failover.py::test_a_primary_that_becomes_read_only_is_left_for_the_next",
        ),
        (
            "a_time_out_of_the_url_is_overruled",
            'address.url.query.get("connect_timeout", max(',
            'address.url.query.get("", max(',
            "stores/test_store_failover.py::test_parameters_of_libpq_are_not_overruled",
        ),
        (
            "several_hosts_have_one_port",
            'for host in hosts.split(","))',
            'for host in hosts.split(",")[-1:])',
            "stores/test_store_failover.py::test_several_hosts_as_libpq_has_them",
        ),
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
            'f"PRAGMA synchronous={address.synchronous}",',
            '"PRAGMA synchronous=OFF",',
            "stores/test_store_durable.py",
        ),
        (
            "sqlite_syncs_no_reply",
            'f"PRAGMA synchronous={address.synchronous}",',
            '"PRAGMA synchronous=NORMAL",',
            "stores/test_store_durable.py",
        ),
        (
            "sqlite_syncs_each_question_by_itself",
            "relaxed = address.sqlite and provisional",
            "relaxed = address.sqlite and False",
            "stores/test_store_durable.py",
        ),
        (
            "serializable_transactions_are_read_committed",
            "'SERIALIZABLE' if address.serializable",
            "'SERIALIZABLE' if address.proxied",
            "stores/test_statements.py::test_each_statement_names_owner_and_session",
        ),
    ),
    *of(
        "stores/leaf_index.py",
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
            "sql_stops_before_enough_hits",
            "if len(leaves) == limit and len(hits_by_term[term]) < newest:",
            "if len(leaves) > limit and len(hits_by_term[term]) < newest:",
            "stores/test_search_index.py::test_newest_hits_behind_leaves_that_an_erasure_emptied",
        ),
    ),
    *of(
        "stores/sql_index.py",
        (
            "sql_reads_a_leaf_too_few",
            "                read = read[-1:]  # the lowest",
            "                read = read[:0]  # the lowest",
            "stores/test_search_index.py::test_it_holds_what_a_store_in_memory_holds",
        ),
    ),
    *of(
        "stores/valkey_server.py",
        (
            "valkey_takes_any_database_as_the_first",
            "and (replicas + database).isdecimal()",
            "and replicas.isdecimal()",
            "stores/test_valkey.py::test_a_url_that_cannot_be_meant_is_refused",
        ),
        (
            "valkey_forgets_the_login_of_a_sentinel_url",
            "login + at + host, database",
            "host, database",
            "stores/test_valkey.py::TestValkeySentinels::test_the_owners_of_a_store",
        ),
        (
            "a_primary_that_hangs_takes_all_the_time_there_is",
            "timeout_s * 0.6",
            "timeout_s * 6",
            "stores/test_valkey.py::test_a_writer_behind_sentinels_goes_on_with_the_next_primary",
        ),
        (
            "valkey_keys_have_other_names_than_in_an_older_release",
            'return f"ctxfold:{{{quote(',
            'return f"ctxfolds:{{{quote(',
            "stores/test_two_releases.py::test_either_release_goes_on_from_what_the_other_has_stored",
        ),
        (
            "valkey_writes_over_another_worker",
            "if (redis.call('GET', key) or '') ~= take() then return 0 end",
            "take()",
            "stores/test_valkey.py::TestValkey::test_threads_that_append_keep_every_writers_order",
        ),
        (
            "valkey_doubles_an_id_from_before",
            "if redis.call('HEXISTS', key, take()) == 1 then return 0 end",
            "take()",
            "stores/test_valkey.py::TestValkey",
        ),
        (
            "valkey_takes_a_write_that_no_replica_has",
            "(had := results.pop()) < self._wait:",
            "(had := results.pop()) < 0:",
            "stores/test_valkey.py::test_a_write_that_too_few_replicas_have_says_so_and_may_be_tried_again",
        ),
        (
            "an_option_that_valkey_does_not_know_is_a_traceback_at_the_first_call",
            "        client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)",
            "        pass",
            "stores/test_valkey.py::test_a_url_that_cannot_be_meant_is_refused",
        ),
        (
            "a_cluster_that_is_down_is_no_typed_error",
            "except errors.RedisClusterException as error:",
            "except errors.MovedError as error:",
            "stores/test_valkey.py::test_a_cluster_without_a_node_that_answers_is_named",
        ),
    ),
    *of(
        "stores/valkey.py",
        (
            "valkey_gives_a_held_lease_away",
            "if holder ~= ARGV[2] and tonumber(until_s) > now then return 0 end",
            "if holder ~= ARGV[2] and tonumber(until_s) < now then return 0 end",
            "stores/test_valkey.py::TestValkey::test_a_lease_has_one_holder",
        ),
        (
            "valkey_keeps_the_vectors_of_erased_messages",
            '            batch.add("HDEL", vectors_key(key, name.decode()), seqs)\n',
            "            del name\n",
            "stores/test_valkey.py::TestValkey::test_erasure_removes_vectors_for_good",
        ),
    ),
    *of(
        "stores/posting_leaves.py",
        (
            "leaves_have_another_order_of_bytes_than_in_an_older_release",
            'struct.Struct(f"<{_CODES[first]}',
            'struct.Struct(f">{_CODES[first]}',
            "stores/test_two_releases.py::test_either_release_goes_on_from_what_the_other_has_stored",
        ),
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
    *of(
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
    *of(
        "stores/sql_schema.py",
        (
            "sql_takes_a_lease_from_its_holder",
            "WHERE ctxfold_leases.until_s <= ? OR",
            "WHERE ctxfold_leases.until_s > ? OR",
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
    *of(
        "stores/key_value.py",
        (
            "a_lease_of_a_key_value_store_never_ends",
            "if other != holder and until_s > now_s:",
            "if other != holder:",
            "stores/test_store_suite.py::TestOutsideStore::test_a_lease_ends_by_itself",
        ),
    ),
    *of(
        "stores/sql_rows.py",
        (
            "a_forgotten_text_stays_as_a_quotation",
            'replace(decode_item(payload), replaces="")',
            "decode_item(payload)",
            "stores/test_store_suite.py::TestSqlite::test_forgotten_text_is_not_learnt_again_from_the_same_messages",
        ),
    ),
)
