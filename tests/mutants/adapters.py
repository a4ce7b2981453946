"""Mutants of what both framework packages need."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, of

MUTANTS: tuple[Mutant, ...] = (
    *of(
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
    *of(
        "adapters/calls.py",
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
    *of(
        "adapters/calls.py",
        (
            "both_forms_of_a_backend_are_required",
            'return getattr(owner, name, None), getattr(owner, f"a{name}", None)',
            'return getattr(owner, name), getattr(owner, f"a{name}")',
            "faces/test_one_form.py",
        ),
        (
            "chunks_of_a_borrowed_model_are_not_classified",
            "return ModelStream(source, reader, self.model, self.translated, self.classified).begin()",
            "return ModelStream(source, reader, self.model, self.translated).begin()",
            "faces/test_backend_methods.py::test_r8_a_backend_over_a_framework_s_model_may_classify_its_chunks",
        ),
        (
            "the_first_piece_of_a_borrowed_model_is_lost",
            "        piece, self._first = self._first, None\n",
            "        piece, self._first = (yield from self._piece()), None\n",
            "faces/test_backend_methods.py::test_r8_a_backend_that_is_no_wire_offers_what_a_wire_offers",
        ),
    ),
)
