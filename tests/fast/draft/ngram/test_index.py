"""The n-gram index against a search of the whole text, and the rules of what a match licenses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer import spec
from ninfer.fast.draft.ngram import kernels
from ninfer.fast.draft.ngram.index import NgramIndex, Tokens

IDS = 1000
SPECIAL = np.zeros(IDS, bool)
SPECIAL[:4] = True  # ids 0..3 end spans
BORDER = -(2**31)
RULES = spec.document("speculation")["ngram"]


def array(*values: int) -> Tokens:
    return np.array(values, np.int32)


def fresh(seed: int, count: int) -> Tokens:
    """Tokens in which no four repeat, in all likelihood."""
    return np.random.default_rng(seed).integers(4, IDS, count).astype(np.int32)


def index_of(*parts: Tokens, room: int = 1000, sources: tuple[Tokens, ...] = ()) -> NgramIndex:
    """An index over the joined parts; only the first is the prompt."""
    index = NgramIndex(parts[0], room, SPECIAL, sources)
    for part in parts[1:]:
        index.append(part)
    return index


# --- the model: every earlier place, compared token by token ---------------------------------------------


def spans(text: list[int], sources: list[list[int]]) -> tuple[list[int], int]:
    """The text and what lies beside it as one list; where the text ends."""
    whole = [token if token >= 4 else -1 - token for token in text]
    for source in sources:
        whole += [BORDER, *(token if token >= 4 else -1 - token for token in source)]
    return whole, len(text)


def longest(text: list[int], sources: list[list[int]], least: int, most: int) -> tuple[int, int]:
    """The largest (matched, left) of any earlier place with enough of both; (0, 0) without one."""
    whole, length = spans(text, sources)
    best = (0, 0)
    for place in range(len(whole)):
        if place == length - 1:
            continue
        count = 0
        while (
            count < min(kernels.EXTEND, length, place + 1)
            and whole[length - 1 - count] >= 0
            and whole[place - count] == whole[length - 1 - count]
        ):
            count += 1
        left, end = 0, length if place < length else len(whole)
        while left < most and place + 1 + left < end and whole[place + 1 + left] >= 0:
            left += 1
        if count >= least:
            best = max(best, (count, left))
    return best


texts = st.lists(st.integers(4, 40), min_size=0, max_size=60)


@given(
    st.lists(texts, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)), max_size=6),
    st.lists(texts, max_size=2),
    st.integers(4, 64),
)
def test_what_is_found_is_the_longest_match_of_the_whole_text(
    parts: list[list[int]], copies: list[tuple[int, int]], sources: list[list[int]], least: int
) -> None:
    """Copies of earlier stretches make matches; the index is fed in the same pieces."""
    text = [token for part in parts for token in part]
    pieces = [list(part) for part in parts]
    for begin, count in copies:
        piece = (text or [9])[begin % max(len(text), 1) :][:count]
        pieces.append(piece)
        text += piece
    room = len(text) - len(pieces[0])
    index = NgramIndex(array(*pieces[0]), room, SPECIAL, [array(*source) for source in sources])
    for piece in pieces[1:]:
        index.append(array(*piece))
    most = 15 + RULES["left_at_end"]
    place, count, left = kernels.find(
        index._text, index._tables, index.length, index._sources_at, index._end, least, most
    )
    wanted = longest(text, sources, least, most)
    if place < 0:
        # A bucket is bounded: places may be lost to others, never invented.
        assert wanted == (0, 0) or len(text) > kernels.WAYS
    assert (count, left) <= wanted
    if len(set(text)) == len(text):
        assert place < 0 or place >= index._sources_at


@given(st.integers(0, 2**32), st.integers(16, 200), st.integers(20, 64), st.integers(4, 20))
def test_a_repeat_in_a_text_without_other_repeats_is_always_found(
    seed: int, length: int, copied: int, least: int
) -> None:
    text = fresh(seed, length + 100)
    begin = seed % length
    span = text[begin : begin + copied]
    proposal = index_of(text, span).propose(15, least, 3)
    rest = text[begin + copied :][:15]
    allowed = len(text) - begin - copied + len(span) - RULES["left_at_end"]
    assert proposal.tolist()[: len(rest)] == rest[: len(proposal)].tolist()
    assert len(proposal) == min(15, allowed)


@pytest.mark.clause("NGRAM-016")
@pytest.mark.parametrize(("repeated", "proposes"), [(11, False), (12, True), (13, True)])
def test_a_copy_needs_its_least_match(repeated: int, proposes: bool) -> None:
    text = fresh(1, 200)
    border = array(*fresh(2, 5))
    index = index_of(text, border, text[50 : 50 + repeated])
    assert (len(index.propose(15, 12, 3)) > 0) == proposes


@pytest.mark.clause("OPT-054")
def test_a_least_match_of_sixty_four_leaves_a_repeat_of_forty_alone() -> None:
    text = fresh(1, 300)
    assert not len(index_of(text, fresh(2, 5), text[50:90]).propose(15, 64, 3))
    assert len(index_of(text, fresh(2, 5), text[50:114]).propose(15, 64, 3))


@pytest.mark.clause("NGRAM-017")
def test_of_two_sources_the_one_with_the_longer_match_is_copied() -> None:
    common, longer = fresh(1, 16), fresh(2, 24)
    first = np.concatenate([longer, common, array(*range(100, 130))])
    second = np.concatenate([fresh(3, 24), common, array(*range(200, 230))])
    for sources in ((first, second), (second, first)):
        index = index_of(np.concatenate(sources), fresh(4, 30), longer, common)
        assert index.propose(15, 12, 3).tolist() == list(range(100, 115))
    # Beyond 64 equal tokens there is no preference: the later source wins though the other matches 80.
    run = fresh(5, 80)
    early = np.concatenate([run, array(*range(300, 330))])
    late = np.concatenate([fresh(6, 10), run[-64:], array(*range(400, 430))])
    index = index_of(early, late, fresh(7, 30), run)
    assert index.propose(15, 12, 3).tolist() == list(range(400, 415))


@pytest.mark.clause("NGRAM-018")
@given(st.integers(0, 2**32), st.integers(5, 63))
def test_a_proposal_is_a_slice_of_one_text_after_the_match(seed: int, window: int) -> None:
    random = np.random.default_rng(seed)
    sources = [random.integers(0, 12, 80).astype(np.int32) for _ in range(3)]
    text = random.integers(0, 12, 120).astype(np.int32)
    index = index_of(text[:60], text[60:], sources=tuple(sources))
    proposal = index.propose(window, 4, 3)
    if len(proposal):
        wanted = np.concatenate([text[-4:], proposal]).tolist()
        lists = [list(map(int, source)) for source in (text, *sources)]
        assert any(wanted == whole[at : at + len(wanted)] for whole in lists for at in range(len(whole))), (
            "not a true continuation"
        )
        assert (proposal >= 4).all()


@pytest.mark.clause("NGRAM-019")
def test_equal_hashes_and_lost_places_never_make_a_false_continuation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A table of one bucket: every suffix collides with every other, and nearly all places are lost."""
    text = fresh(3, 400)
    index = index_of(text, room=4000)
    index._tables = np.zeros((3, kernels.WAYS), np.int32)
    kernels.insert_span(index._text, index._tables, 0, 400, 0)
    for begin in range(0, 380, 7):
        index.append(text[begin : begin + 14])
        found = index.propose(15, 12, 3).tolist()
        whole = [*text.tolist(), *text[: begin + 14].tolist()]
        del whole
        if found:
            follow = text[begin + 14 : begin + 14 + len(found)].tolist()
            assert found == follow


@pytest.mark.clause("NGRAM-021", "NGRAM-022")
@pytest.mark.parametrize(("left", "drafts"), [(20, 15), (17, 15), (10, 8), (6, 4), (5, 0), (3, 0), (0, 0)])
def test_the_end_of_a_source_is_left_to_a_neural_round(left: int, drafts: int) -> None:
    """Window 15, three neural drafts: R tokens left give R − 2, and no more than three is no copy."""
    source = fresh(1, 30 + left)
    index = index_of(fresh(2, 50), fresh(3, 9), source[:30], sources=(source,))
    proposal = index.propose(15, 12, 3)
    assert proposal.tolist() == source[30 : 30 + drafts].tolist()


@pytest.mark.clause("NGRAM-023")
def test_which_tokens_they_are_does_not_matter() -> None:
    random = np.random.default_rng(4)
    text = random.integers(4, 30, 500).astype(np.int32)
    renamed = np.concatenate([[0, 1, 2, 3], 4 + random.permutation(IDS - 4)]).astype(np.int32)
    one, other = index_of(text[:100]), index_of(renamed[text[:100]])
    for begin in range(100, 500, 10):
        for index, tokens in ((one, text), (other, renamed[text])):
            index.append(tokens[begin : begin + 10])
        assert renamed[one.propose(15, 5, 3)].tolist() == other.propose(15, 5, 3).tolist()


@pytest.mark.clause("NGRAM-024")
def test_only_what_was_appended_is_ever_found() -> None:
    """Rejected drafts are never appended: looking up changes nothing, however often."""
    text = fresh(1, 200)
    index = index_of(text, text[20:40])
    before = (index._text[: index.length].copy(), index._tables.copy())
    proposals = [index.propose(15, 12, 3).tolist() for _ in range(3)]
    assert proposals == [text[40:55].tolist()] * 3
    index.append(array(5, 6, 7, 8, 9))  # the target went elsewhere
    assert not len(index.propose(15, 4, 3))
    assert (index._text[: len(before[0])] == before[0]).all()


@pytest.mark.clause("NGRAM-025")
def test_special_tokens_end_spans() -> None:
    body, special = fresh(1, 60), array(2)
    index = index_of(np.concatenate([body[:40], special, body[40:]]), fresh(2, 9), body[10:30])
    assert index.propose(30, 12, 3).tolist() == body[30:38].tolist()
    # Nor does a match reach back over one: eleven tokens behind it are too few.
    text = np.concatenate([body[:20], special, body[20:]])
    assert not len(index_of(text, fresh(2, 9), text[:32]).propose(15, 12, 3))
    assert len(index_of(text, fresh(2, 9), text[:33]).propose(15, 12, 3))


@pytest.mark.clause("NGRAM-029")
def test_memory_is_bounded_and_early_blocks_of_a_long_text_are_still_found() -> None:
    text = fresh(1, 200_000)
    index = index_of(text, room=60_000)
    assert index.bytes <= RULES["index"]["maximum_bytes"]
    before, found = index.bytes, 0
    for begin in range(0, 50_000, 1000):
        index.append(text[begin : begin + 20])
        found += index.propose(15, 12, 3).tolist() == text[begin + 20 : begin + 35].tolist()
    assert index.bytes == before
    assert found >= 45, f"{found} of 50"


def test_sources_take_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = spec.document("speculation")["ngram"]["index"]
    monkeypatch.setitem(rules, "maximum_bytes", 64 * 1024)
    monkeypatch.setitem(rules, "maximum_slots", 2048)
    index = index_of(fresh(1, 1000), room=1000, sources=(fresh(2, 5000), fresh(3, 9000)))
    assert index.bytes <= 64 * 1024
    assert index_of(fresh(1, 1000), room=1000, sources=(fresh(2, 5000),)).bytes <= 64 * 1024
    with pytest.raises(AssertionError, match="room"):
        index.append(fresh(4, 1001))


def test_an_empty_text_proposes_nothing() -> None:
    index = index_of(array(), room=3)
    assert not len(index.propose(15, 4, 3))
    index.append(array(7))
    assert not len(index.propose(15, 4, 0))
