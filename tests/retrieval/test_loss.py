"""A reply that says that earlier content is missing is noticed, and the next request recalls for its question too, once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from ctxfold import AgentContext, MemoryStore, Message, ScriptedBackend, assistant, user
from ctxfold.events import LossNoticed
from ctxfold.retrieval.loss import says_missing
from ctxfold.tokens.text import RatioCounter
from tests.benchmarks.data import DataMissingError, folder, tau

FACT = "Anna keeps the zinc buckets in locker 4711."
LOST = "Where are the zinc buckets of Anna?"
AGAIN = "Please look once more."
MISSING = "I'm sorry, I don't have that earlier message."
_FILLER = "The harbour master counts the boats of the day and writes them down. " * 12

# ten paraphrases in each of six languages, written before the patterns and not used for them
PARAPHRASES = (
    "I'm sorry, but I don't have access to your earlier message about the locker code.",
    "I can't find that in our conversation. Could you tell me the date again?",
    "Unfortunately the part of the chat where you gave me the address is no longer visible to me.",
    "I do not see any previous mention of a budget in what I have here.",
    "It looks like the earlier part of our conversation isn't available to me anymore.",
    "I no longer remember what you told me about Anna's allergy.",
    "There is no record of that in the messages I can see.",
    "I seem to have lost the context from before; what was the order number?",
    "Nothing in the conversation so far tells me which hotel you chose.",
    "I wasn't able to locate the list that you shared earlier in this thread.",
    "Leider habe ich keinen Zugriff mehr auf Ihre frühere Nachricht.",
    "Ich kann in unserem bisherigen Gespräch keine Angabe zu deinem Budget finden.",
    "An das, was du vorhin gesagt hast, kann ich mich nicht mehr erinnern.",
    "Die Adresse, die Sie mir genannt haben, liegt mir nicht mehr vor.",
    "In den Nachrichten, die ich sehe, kommt kein Termin vor.",
    "Der frühere Teil des Chats ist für mich nicht mehr sichtbar.",
    "Tut mir leid, dazu finde ich nichts in unserem Verlauf.",
    "Mir fehlt der vorherige Teil der Unterhaltung, bitte nenne mir den Code noch einmal.",
    "Ich weiß leider nicht mehr, welches Hotel du erwähnt hattest.",
    "Davon steht in diesem Gesprächsverlauf nichts.",
    "Lo siento, no tengo acceso a tu mensaje anterior.",
    "No encuentro esa fecha en nuestra conversación.",
    "No recuerdo lo que me dijiste sobre la alergia de Ana.",
    "La parte anterior del chat ya no está disponible para mí.",
    "No veo ninguna mención previa de un presupuesto en los mensajes.",
    "Parece que he perdido el contexto de lo que hablamos antes.",
    "En esta conversación no aparece el número de pedido que mencionas.",
    "No consta en el historial qué hotel elegiste.",
    "Desgraciadamente ya no puedo ver la lista que compartiste anteriormente.",
    "No dispongo de los mensajes anteriores, ¿podrías repetir el código?",
    "Désolé, je n'ai plus accès à votre message précédent.",
    "Je ne trouve pas cette date dans notre conversation.",
    "Je ne me souviens pas de ce que vous m'avez dit au sujet de l'allergie d'Anna.",
    "La première partie de notre échange n'est plus visible pour moi.",
    "Je ne vois aucune mention d'un budget dans les messages précédents.",
    "Il semble que j'aie perdu le contexte de notre discussion.",
    "Rien dans la conversation ne m'indique quel hôtel vous avez choisi.",
    "Je ne dispose pas de l'historique où figurait le numéro de commande.",
    "Malheureusement, je ne retrouve pas la liste que vous aviez partagée plus tôt.",
    "L'adresse que vous m'avez donnée ne figure pas dans ce que je peux voir de la discussion.",
    "抱歉，我看不到您之前的消息。",
    "我在我们的对话中找不到这个日期。",
    "我不记得您之前说过的预算了。",
    "之前的聊天内容我已经无法查看。",
    "在目前的对话里没有提到订单号。",
    "很遗憾，我没有之前的聊天记录，请再告诉我一次密码。",
    "我这里没有您先前提供的地址。",
    "前面的对话内容似乎已经丢失了。",
    "我无法访问早前的消息，您能再说一遍吗？",
    "聊天记录中并没有您选择的酒店。",
    "申し訳ありませんが、以前のメッセージを確認できません。",
    "この会話の中にその日付は見つかりませんでした。",
    "以前おっしゃった予算については覚えていません。",
    "前のやり取りはもう参照できません。",
    "これまでの会話には注文番号が出てきていません。",
    "過去のチャット履歴がないため、もう一度コードを教えてください。",
    "先ほど伺った住所が手元に残っていません。",
    "会話の前半部分が見えなくなっています。",
    "以前のお話の内容にアクセスできないようです。",
    "どのホテルを選ばれたかは、会話の履歴にありません。",
)
OTHERS = (
    "I don't have any flights on that day.",
    "Locker 4711, as you said before.",
    "The hotel has no chat, but there is a telephone.",
    "Unfortunately we cannot change a basic economy ticket.",
    "Ich habe heute keine Termine mehr frei.",
    "No tengo vuelos ese día.",
    "Je n'ai pas de vol ce jour-là.",
    "那天没有航班。",
    "その日の便はありません。",
)


def test_most_paraphrases_of_six_languages_are_noticed() -> None:
    assert sum(map(says_missing, PARAPHRASES)) >= 0.9 * len(PARAPHRASES)


@pytest.mark.parametrize("reply", OTHERS)
def test_what_is_not_there_for_another_reason_is_no_loss(reply: str) -> None:
    assert not says_missing(reply)


def test_only_the_beginning_of_a_reply_counts() -> None:
    assert says_missing(f"Hello. {MISSING} Here is what I know.")
    assert not says_missing("It is in locker 4711. " * 20 + MISSING)


def test_replies_of_real_conversations_raise_no_alarm() -> None:
    """Assistants of five sets; and people, who do talk about what they said."""
    try:
        replies = [m.text for run in tau() for m in run.messages if m.role == "assistant"]
        for name in ("agent_state", "stamps", "asides", "updates", "languages"):
            replies += said(folder(name), "assistant")
        people = [text for name in ("qmsum", "bfcl_memory") for text in said(folder(name), "user")]
    except DataMissingError as missing:
        pytest.skip(str(missing))
    assert [text for text in replies if says_missing(text)] == []
    assert sum(map(says_missing, people)) < 0.001 * len(people)


def said(place: Path, role: str) -> list[str]:
    conversations = json.loads((place / "conversations.json").read_text(encoding="utf-8"))
    return [m["text"] for each in conversations for m in each["messages"] if m["role"] == role]


def compacted(*exchanges: tuple[str, str]) -> list[Message]:
    """Returns a conversation in which the fact was compacted, with these questions and replies at its end."""
    texts = [FACT, "Noted.", *[t for _ in range(20) for t in (_FILLER, "Counted.")], *[t for e in exchanges for t in e]]
    return [(assistant if n % 2 else user)(text, id=f"m{n}") for n, text in enumerate(texts)]


def recalled(messages: Sequence[Message], question: str = AGAIN, window: int = 4_000, **settings: float) -> str:
    with AgentContext(context_window=window, counter=RatioCounter(), **settings) as context:
        for message in messages:
            context.add(message)
        assert context.usage().compactions
        return context.window(recall=True, question=question).recalled


def test_the_next_request_recalls_for_the_lost_question() -> None:
    assert "4711" in recalled(compacted((LOST, MISSING)))
    assert "4711" not in recalled(compacted((LOST, "I have looked it up.")))


def test_it_does_so_once() -> None:
    assert "4711" not in recalled(compacted((LOST, MISSING), (AGAIN, "It is done."), ("Thanks.", "You are welcome.")))
    assert "4711" not in recalled(compacted((LOST, MISSING), (LOST, MISSING)))


def test_its_own_question_is_answered_too() -> None:
    messages = compacted((LOST, MISSING))
    messages.insert(22, user("The ladder of Ben stands in hall 52.", id="ben"))
    text = recalled(messages, "Where is the ladder of Ben?")
    assert "4711" in text
    assert "52" in text


def test_it_may_take_twice_the_share() -> None:
    facts = [f"Locker {4_700 + n} holds the zinc buckets of Anna, {_FILLER[:200]}" for n in range(30)]
    messages = [user(fact, id=f"f{n}") for n, fact in enumerate(facts)]
    counter = RatioCounter()
    lost, found = (
        counter.count(recalled([*messages, *compacted((LOST, reply))], LOST, recall_tokens=200))
        for reply in (MISSING, "They are in a locker.")
    )
    assert found <= 200 < lost <= 400


def test_recall_that_is_off_stays_off() -> None:
    assert recalled(compacted((LOST, MISSING)), recall_ratio=0) == ""


def test_every_process_recalls_the_same() -> None:
    store = MemoryStore()
    with AgentContext(context_window=4_000, counter=RatioCounter(), store=store, session_id="one") as context:
        for message in compacted((LOST, MISSING)):
            context.add(message)
    with AgentContext(context_window=4_000, counter=RatioCounter(), store=store, session_id="one") as context:
        assert "4711" in context.window(recall=True, question=AGAIN).recalled


@pytest.mark.parametrize("by_send", [True, False])
def test_subscribers_learn_of_it(by_send: bool) -> None:
    noticed: list[LossNoticed] = []
    backend = ScriptedBackend([MISSING] * 9)  # it is asked for summaries too
    with AgentContext(backend, context_window=4_000, counter=RatioCounter()) as context:
        context.subscribe(lambda e: noticed.append(e) if isinstance(e, LossNoticed) else None)
        context.add([user("Who are you?", id="a"), assistant(MISSING, id="b")])
        assert noticed == []  # nothing was compacted
        for message in compacted():
            context.add(message)
        if by_send:
            context.send(LOST)
        else:
            context.add([user(LOST, id="q"), assistant(MISSING, id="r")])
    assert [event.reply.text for event in noticed] == [MISSING]
