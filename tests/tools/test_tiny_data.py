"""The data recipe: right answers, the held-out rule, packing, the committed tokenizer."""

from __future__ import annotations

import json
import random
import re

import numpy as np
import pytest

from ninfer.spec import document as spec_document
from tools.tiny import tokenizer
from tools.tiny.data.documents import EXAM_SKILLS, draw_document, exam_document, held
from tools.tiny.data.exchange import SHARED
from tools.tiny.data.pack import ANSWER, PROMPT, START, pack, training_rows
from tools.tiny.data.skills import edits, objects, sums, tools
from tools.tiny.data.split import split_of
from tools.tiny.data.world import facts, number_word
from tools.tiny.shape import TINY


def test_training_never_holds_what_the_exam_asks() -> None:
    rng = random.Random(1)
    for _ in range(400):
        for exchange in draw_document(rng).exchanges:
            assert exchange.identity == SHARED or split_of(exchange.identity) == "train"
    for skill in EXAM_SKILLS:
        last = exam_document(rng, skill).exchanges[-1]
        assert last.identity != SHARED
        assert split_of(last.identity) == "exam"


def test_documents_follow_from_the_seed() -> None:
    first, again, other = ([draw_document(random.Random(seed)) for _ in range(5)] for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_sums_are_right() -> None:
    rng = random.Random(2)
    for _ in range(300):
        asked = held(rng, "train", sums.many)
        for line in asked.answer.splitlines():
            found = re.fullmatch(r"(\d+) \+ (\d+) = (\d+)", line)
            assert found
            a, b, total = map(int, found.groups())
            assert a + b == total


def test_edits_change_what_they_say() -> None:
    """An independent reading of the request, applied to the file in the prompt, gives the answer."""
    rng = random.Random(3)
    kinds = set()
    for _ in range(400):
        asked = held(rng, "train", edits.edit)
        numbered = [line.partition(": ")[::2] for line in asked.user.split("\n") if re.match(r"\d+: ", line)]
        lines = [text for _, text in numbered]
        kinds.add(_apply(asked.user, lines))
        assert asked.answer == edits.numbered(lines)
    assert kinds == {"change", "insert", "delete"}


def _apply(user: str, lines: list[str]) -> str:
    if found := re.search(r"(?:line|Line) (\d+) (?:to|with|should read): (.*)", user):
        lines[int(found[1]) - 1] = found[2]
        return "change"
    if found := re.search(r"(?:Insert|Add) (after|before) line (\d+): (.*)", user):
        lines.insert(int(found[2]) - (found[1] == "before"), found[3])
        return "insert"
    found = re.search(r"(?:Delete|Remove|Drop) lines? (\d+)(?: to (\d+))?\.", user)
    assert found, user
    del lines[int(found[1]) - 1 : int(found[2] or found[1])]
    return "delete"


def test_json_answers_have_the_described_types() -> None:
    rng = random.Random(4)
    names = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "object": dict,
        "array": list,
    }
    checked = 0
    for _ in range(300):
        asked = held(rng, "train", objects.shaped)
        value = json.loads(asked.answer)
        flat = {k: v for key, item in value.items() for k, v in ((key, item), *_inner(item))}
        for key, kind in re.findall(r"([\w]+) \((string|integer|number|boolean|array|object)\b", asked.user):
            assert isinstance(flat[key], names[kind]), asked.user
            checked += 1
    assert checked > 300


def _inner(item: object) -> list[tuple[str, object]]:
    return list(item.items()) if isinstance(item, dict) else []


def test_calls_satisfy_their_declarations() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    rng = random.Random(5)
    for _ in range(200):
        asked = held(rng, "train", rng.choice((tools.single, tools.parallel)))
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in asked.tools}
        for call in asked.calls:
            jsonschema.validate(dict(call.arguments), declared[call.name])


def test_world_says_one_thing_about_each_question() -> None:
    answers: dict[str, str] = {}
    for fact in facts():
        assert fact.value in fact.sentence
        for question in fact.questions:
            assert answers.setdefault(question, fact.value) == fact.value, question
    assert [number_word(n) for n in (0, 13, 20, 45, 100)] == [
        "zero", "thirteen", "twenty", "forty-five", "one hundred",
    ]  # fmt: skip


def test_rows_hold_whole_documents_and_little_padding() -> None:
    rust = tokenizer.load()
    rows = training_rows(rust, 7, 6, 1024)
    again = training_rows(rust, 7, 6, 1024)
    assert np.array_equal(rows.tokens, again.tokens)
    assert rows.tokens.max() < TINY.vocab
    assert (rows.documents >= 0).mean() > 0.93
    padding = rows.documents < 0
    assert not (rows.marks[padding] & (PROMPT | ANSWER)).any()
    ends = rust.token_to_id("<|im_end|>")
    for tokens, marks, numbers in zip(rows.tokens, rows.marks, rows.documents, strict=True):
        borders = np.flatnonzero(np.diff(numbers)) + 1
        assert np.array_equal(np.flatnonzero(marks & START), [0, *borders])
        assert (tokens[borders - 1] == ends).all()


def test_long_documents_are_left_out_not_cut() -> None:
    rows = pack(iter([([1] * 70, [PROMPT] * 70), ([2] * 64, [PROMPT] * 64)]), 1, 64)
    assert (rows.tokens == 2).all()


def test_tokenizer_has_the_promised_form() -> None:
    rust = tokenizer.load()
    control = spec_document("prompt")["tokenizer"]["control_tokens"]
    in_config_only = sum(token.get("config_only", False) for token in control)
    assert rust.get_vocab_size() + in_config_only == TINY.vocab
    assert [rust.token_to_id(token["text"]) for token in control[:26]] == list(range(3551, 3577))
    assert len(rust.encode("12345", add_special_tokens=False).ids) == 5
    text = "naïve 日本語 🙂 def f(x):\n\treturn x  # ok\n"
    assert rust.decode(rust.encode(text, add_special_tokens=False).ids) == text
