"""Search in any language: other forms of a word, other spellings, scripts without spaces, and nothing of that in English."""

from __future__ import annotations

import unicodedata

import pytest

from ctxfold import AgentContext, user
from ctxfold.index.terms import rough_terms, terms
from ctxfold.state import index_entry

FORMS = {
    "German, a compound": ("Der Wasserschaden im Bad ist behoben.", "Wo lief damals Wasser aus?"),
    "German, plural": ("Die Mülltonne steht hinter dem Schuppen.", "Wohin gehören unsere Mülltonnen?"),
    "German, umlauts as two letters": ("Die Mülltonne steht hinter dem Schuppen.", "Wohin mit den Muelltonnen?"),
    "German, sharp s": ("Unsere Gießkanne leckt am Boden.", "Welche Giesskanne leckt?"),
    "English, a verb that ends like a past tense": ("The embedding of the texts runs at night.", "When do we embed?"),
    "Italian": ("Il gatto grigio dorme sul divano.", "Dove dormono i gatti?"),
    "Spanish": ("El cajón grande guarda las llaves.", "¿Qué cajones hay?"),
    "Swedish": ("Nyckeln ligger under krukan.", "Var ligger alla nycklarna?"),
    "Finnish": ("Avain roikkuu eteisen koukussa.", "Mistä avaimet löytyvät?"),
    "Hungarian": ("A kulcs a konyhában lóg.", "Hová tette a kulcsokat?"),
    "Czech": ("Žebřík stojí za stodolou.", "Komu patří ty zebriky?"),
    "Polish": ("Drabina stoi za stodołą.", "Gdzie stoją wszystkie drabiny?"),
    "Turkish, without its letters": ("Gömleğim dolapta asılı.", "Gomlekler nerede duruyor?"),
    "Vietnamese, without tones": ("Chìa khóa ở trong ngăn kéo.", "Chia khoa de dau?"),
    "Russian": ("Лестница стоит за сараем.", "Куда убрали лестницы?"),
    "Russian, e for ё": ("Щётка лежит в ящике.", "Кому нужна щетка?"),
    "Ukrainian": ("Драбина стоїть за хлівом.", "Куди поділися драбини?"),
    "Greek, without accents": ("Το κλειδί κρέμεται στην κουζίνα.", "Που ειναι τα κλειδια;"),
    "Arabic, broken plural": ("المفتاح فوق الخزانة.", "أين وضعت مفاتيح البيت؟"),
    "Arabic, with points": ("الدَّفْتَرُ الأَحْمَر فوق الرف.", "أين الدفتر الاحمر؟"),
    "Hindi, without dots": ("दराज़ में चाबी रखी है।", "दराज किसकी है?"),
    "Hindi, plural": ("चाबी दीवार पर टंगी है।", "चाबियाँ कहाँ हैं?"),
    "Chinese, in traditional characters": ("钥匙挂在门后。", "鑰匙在哪裡？"),
    "Japanese, in katakana": ("かぎは引き出しにあります。", "カギはどこ?"),
    "Korean, with another ending": ("열쇠는 서랍에 있어요.", "열쇠가 어디 있나요?"),
    "Thai": ("กุญแจอยู่ในลิ้นชัก", "ใครเก็บกุญแจไว้"),
    "letters of full width": ("The spare key is in ＢＯＸ two.", "box"),
    "decomposed letters": (unicodedata.normalize("NFD", "We met at the café."), "Who met at the cafe?"),
}


def found(said: str, question: str) -> bool:
    """Tells whether a question finds what was said, and nothing else."""
    with AgentContext(context_window=8_000) as ctx:
        ctx.add([user(said, id="said"), *(user(f"Quiet day {n}.", id=f"day{n}") for n in range(12))])
        hits = [hit.message_id for hit in ctx.search(question)]
        assert hits in ([], ["said"])
        return bool(hits)


@pytest.mark.parametrize("case", FORMS)
def test_another_form_or_spelling_of_a_word_is_found(case: str) -> None:
    assert found(*FORMS[case])


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("The news came late.", "Is there a new one?"),
        ("He planed the board.", "What was planned?"),
        ("We saw it on the internet.", "What was the interview about?"),
        ("He came with the author.", "How does it authenticate?"),
    ],
)
def test_english_words_that_begin_alike_stay_apart(said: str, asked: str) -> None:
    assert not found(said, asked)


def test_text_in_english_data_and_code_have_no_rough_stems() -> None:
    for text in (
        "Move green garden chairs there.",
        "Please move the meeting to the garden.",
        '{"flight": "HAT-12", "gate": 4}',
        "user_id = read_file(path_2)",
    ):
        assert not [t for t in index_entry(1, user(text)).terms if t.endswith("~")], text


def test_rough_stems_do_not_make_a_message_longer() -> None:
    text = "Die Mülltonne steht hinter dem Schuppen, und ihr Deckel klemmt."
    entry = index_entry(1, user(text))
    assert entry.length == len([*terms(text)])
    assert entry.terms.keys() == {*terms(text), *rough_terms(text)}
    long = index_entry(1, user(f"{text} " * 1_000))
    assert (long.terms.keys(), long.length) == (entry.terms.keys(), 1_000 * entry.length)


def test_a_search_for_one_word_is_not_led_by_short_messages_with_rough_stems() -> None:
    """Whether two words are English cannot be told; where most messages that have a word have no rough stem, none counts."""
    with AgentContext(context_window=8_000) as ctx:
        ctx.add([user("Authors unite!", id="short")])
        ctx.add([user(f"We had to authenticate again on day {n}.", id=f"m{n}") for n in range(9)])
        assert {hit.message_id for hit in ctx.search("authentication")} == {f"m{n}" for n in range(9)}
