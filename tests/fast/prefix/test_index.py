"""The rules of the index one by one: what is found, what is kept, and who goes first."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer.fast.prefix.content import Content, MediaSpan, axes_key
from ninfer.fast.prefix.cost import CostModel
from ninfer.fast.prefix.index import PrefixIndex
from ninfer.fast.prefix.snapshots import Kind, Snapshot
from ninfer.fast.prefix.tree import ABSENT, Copy, Node
from tests.fast.prefix.memory import IMAGE, PAGE, Memory, new_index, tokens


def walked(index: PrefixIndex, memory: Memory, *values: int) -> list[Node]:
    """The path of a sequence that runs, its blocks published."""
    content, path = Content(tokens(*values)), list[Node]()
    for block in range(len(values)):
        page = memory.new_page(block)
        path.append(index.insert(path[-1] if path else index.tree.root, content, block, page)[0])
        memory.drop_page(page)
    return path


def stored(
    index: PrefixIndex, memory: Memory, *values: int, tail: int = 0, kind: Kind = Kind.TAP
) -> Snapshot:
    """A sequence has come and gone, leaving its blocks and a snapshot at its end."""
    content = Content(tokens(*values, tail=tail))
    path = walked(index, memory, *values)
    anchor = path[-1] if path else index.tree.root
    frontier = 64 * len(values) + tail
    page = memory.new_page("tail") if tail else ABSENT
    assert index.make_room(anchor, tail)
    slot = memory.new_slot("image")
    snapshot = index.publish(anchor, content.tail(frontier), b"", kind, slot, page, 0)
    index.release(path)
    return snapshot


@pytest.fixture
def memory() -> Memory:
    return Memory(64, 20)


def test_a_hash_that_is_always_the_same_never_makes_a_hit(memory: Memory) -> None:
    index = new_index(memory, 8, lambda tokens, extra: 7)
    stored(index, memory, 1, 2, 3)
    assert index.find(Content(tokens(1, 2, 4, tail=1)), 193).snapshots == ()
    assert len(index.find(Content(tokens(1, 2, 4, tail=1)), 193).path) == 2
    assert len(index.find(Content(tokens(1, 2, 3, tail=1)), 193).snapshots) == 1


def test_the_same_tokens_under_another_image_share_what_is_before_it(memory: Memory) -> None:
    """Case B39: two images of equal size behind the same placeholders."""
    index = new_index(memory, 8)
    ids = tokens(1, 2, 3, 4, tail=1)

    def with_image(digest: bytes) -> Content:
        return Content(ids, (MediaSpan(70, 120, digest),), b"axes")

    content, path = with_image(b"P"), list[Node]()
    for block in range(4):
        parent = path[-1] if path else index.tree.root
        path.append(index.insert(parent, content, block, memory.new_page(block))[0])
        slot = memory.new_slot(block)
        index.publish(path[-1], b"", b"", Kind.TAP, slot, ABSENT, 0)
    again, other = (index.find(with_image(digest), len(ids)) for digest in (b"P", b"Q"))
    assert [snapshot.frontier for snapshot in again.snapshots] == [64, 128, 192, 256]
    assert [snapshot.frontier for snapshot in other.snapshots] == [64], "later blocks are other ones too"
    assert index.find(Content(ids), len(ids)).snapshots == (), "text has other axes"
    assert with_image(b"P").shared_with(with_image(b"Q")) == 70
    assert not with_image(b"P").is_frontier(100)
    assert with_image(b"P").frontier_at_or_before(100) == 70


def test_axes_that_are_not_a_texts_tell_sequences_apart() -> None:
    plain = np.tile(np.arange(100, dtype=np.int32), (3, 1))
    assert axes_key(plain) == b""
    moved = plain.copy()
    moved[1, 50:] += 1
    assert axes_key(moved) not in (b"", axes_key(moved + 1))


def test_the_last_token_is_never_served(memory: Memory) -> None:
    index = new_index(memory, 8)
    stored(index, memory, 1, 2)
    assert index.find(Content(tokens(1, 2)), 128).snapshots == ()
    assert index.find(Content(tokens(1, 2, tail=1)), 129).snapshots != ()


def test_a_tail_matches_exactly(memory: Memory) -> None:
    index = new_index(memory, 8)
    stored(index, memory, 1, tail=10)
    same, other = Content(tokens(1, tail=20)), tokens(1, tail=20)
    other[70] += 1
    assert [s.frontier for s in index.find(same, 84).snapshots] == [74]
    assert index.find(Content(other), 84).snapshots == ()


def test_publishing_again_changes_nothing(memory: Memory) -> None:
    index = new_index(memory, 8)
    snapshot = stored(index, memory, 1, tail=10)
    index.shelf.supersede(snapshot)
    assert index.known(snapshot.anchor, snapshot.tail, b"") is snapshot
    index.refresh(snapshot, Kind.BOUNDARY)
    assert (snapshot.superseded, snapshot.hits, snapshot.kind) == (0, 0, Kind.BOUNDARY)
    assert len(index.shelf.held) == 1


def test_deeper_blocks_go_first_and_take_their_snapshots(memory: Memory) -> None:
    index = new_index(memory, 8)
    upper, lower = stored(index, memory, 1, 2), stored(index, memory, 1, 2, 3, 4, tail=5)
    assert [getattr(entry, "depth", "tail") for entry in index.tree.unused()] == ["tail", 4, 3, 2, 1]
    index.evict(memory.free_pages + 2)
    assert lower.removed
    assert not upper.removed
    assert index.tree.blocks == 3
    index.evict(memory.free_pages + 2)
    assert upper.removed
    assert index.counters.unbacked_node_losses == 3


def test_a_hit_makes_the_whole_path_recent(memory: Memory) -> None:
    index = new_index(memory, 8)
    old, new = stored(index, memory, 1, 2), stored(index, memory, 5, 6)
    path = old.anchor.path()
    for node in path:
        index.tree.use(node)
    index.release(path)
    index.evict(memory.free_pages + 1)
    assert (old.removed, new.removed) == (False, True)


def test_what_has_a_second_copy_goes_before_what_has_none(memory: Memory) -> None:
    """The interface to a second tier: the entry stays, without its page, and can take a page again."""
    index = new_index(memory, 8)
    stored(index, memory, 1)
    backed = stored(index, memory, 5).anchor
    backed.host, backed.slab = Copy.RESIDENT, 3
    index.tree.enlist(backed)
    index.evict(memory.free_pages + 1)
    assert (backed.removed, backed.device, backed.page) == (False, Copy.ABSENT, ABSENT)
    assert index.counters.unbacked_node_losses == 0
    content = Content(tokens(5, tail=1))
    assert index.find(content, 65).path == (), "not on the device"
    page = memory.new_page("again")
    node, fresh = index.insert(index.tree.root, content, 0, page)
    assert (node, fresh, node.page) == (backed, True, page)
    assert index.counters.blocks_reattached == 1


def test_a_block_that_is_being_filled_is_not_mapped(memory: Memory) -> None:
    index = new_index(memory, 8)
    node = stored(index, memory, 1, 2).anchor
    node.device = Copy.FILLING
    assert len(index.find(Content(tokens(1, 2, tail=1)), 129).path) == 1


def test_what_is_in_use_is_never_evicted(memory: Memory) -> None:
    index = new_index(memory, 8)
    path = stored(index, memory, 1, 2, 3).anchor.path()
    for node in path:
        index.tree.use(node)
    assert not index.evict(len(memory.owners))
    assert index.tree.blocks == 3
    index.release(path)
    assert index.evict(len(memory.owners))


def test_superseded_snapshots_go_first_the_oldest_supersession_before_others(memory: Memory) -> None:
    index = new_index(memory, 3)
    first, second, third = (stored(index, memory, value, value) for value in (1, 2, 3))
    index.shelf.supersede(third)
    index.shelf.supersede(first)
    stored(index, memory, 4, 4)
    assert (first.removed, second.removed, third.removed) == (False, False, True)
    stored(index, memory, 5, 5)
    assert (first.removed, second.removed) == (True, False)


def test_a_hit_ends_a_supersession(memory: Memory) -> None:
    index = new_index(memory, 2)
    first, second = stored(index, memory, 1, 1), stored(index, memory, 2, 2)
    index.shelf.supersede(first)
    index.hit(first)
    index.shelf.supersede(second)
    stored(index, memory, 3, 3)
    assert (first.removed, second.removed) == (False, True)


def test_a_boundary_is_superseded_only_while_nobody_branches_below(memory: Memory) -> None:
    index = new_index(memory, 8)
    boundary = stored(index, memory, 1, kind=Kind.BOUNDARY)
    stored(index, memory, 1, 2)
    stored(index, memory, 1, 3)
    index.shelf.supersede(boundary)
    assert not boundary.superseded
    lonely = stored(index, memory, 7, kind=Kind.BOUNDARY)
    stored(index, memory, 7, 2, 3)
    index.shelf.supersede(lonely)
    assert lonely.superseded


def worth(index: PrefixIndex, above: int, frontier: int, tail: bool = False) -> float:
    """C / Z by hand."""
    costs = index.shelf._costs
    saved = costs.prefill_s(above, frontier - above) - costs.restore_s(tail)
    return max(0.0, saved) / (IMAGE + PAGE * tail)


def test_the_value_of_a_snapshot_by_hand(memory: Memory) -> None:
    """Nested, siblings and frequency."""
    index = new_index(memory, 8)
    outer = stored(index, memory, 1, 2)
    assert index.shelf.priority(outer) == pytest.approx(worth(index, 0, 128))
    inner = stored(index, memory, 1, 2, 3, 4)
    assert index.shelf.priority(inner) == pytest.approx(worth(index, 128, 256))
    assert index.shelf.priority(outer) == pytest.approx(worth(index, 0, 128)), "what lies below is no price"
    sibling = stored(index, memory, 1, 2, 5, tail=6)
    assert index.shelf.priority(sibling) == pytest.approx(worth(index, 128, 198, True))
    index.hit(sibling)
    assert index.shelf.priority(sibling) == pytest.approx(2 * worth(index, 128, 198, True))
    index.shelf.supersede(outer)
    assert index.shelf.priority(inner) == pytest.approx(worth(index, 0, 256)), "nothing retained above"


def test_a_long_conversation_keeps_its_place_beside_short_ones(memory: Memory) -> None:
    index = new_index(memory, 3)
    long = stored(index, memory, *range(1, 25))
    for value in range(50, 60):
        stored(index, memory, *([value] * 3))
    assert not long.removed


def test_a_snapshot_of_less_value_displaces_nobody_and_the_floor_only_rises(memory: Memory) -> None:
    index = new_index(memory, 2)
    for values in ((1, 2, 3, 4, 5), (6, 7, 8, 9, 10)):
        stored(index, memory, *values)
    assert not index.make_room(index.tree.root, 1), "one token saves next to nothing"
    assert index.shelf.floor == pytest.approx(worth(index, 0, 1, True)), "the newcomer was the loss"
    floors = []
    for value in range(20, 26):
        stored(index, memory, *([value] * 6))
        floors.append(index.shelf.floor)
    assert floors == sorted(floors)
    assert floors[-1] > 0


def offered(index: PrefixIndex, memory: Memory, *values: int) -> bool:
    """As ``stored``, where there is room for the snapshot; whether there was."""
    path = walked(index, memory, *values)
    fits = index.make_room(path[-1], 0)
    if fits:
        index.publish(path[-1], b"", b"", Kind.TAP, memory.new_slot("image"), ABSENT, 0)
    index.release(path)
    return fits


def test_what_was_used_often_once_does_not_keep_newcomers_out(memory: Memory) -> None:
    """Two prompts of a hundred hits each, then another one that is sent again and again."""
    index = new_index(memory, 2)
    for snapshot in [stored(index, memory, *values) for values in ((1, 2, 3), (4, 5, 6))]:
        for _ in range(100):
            index.hit(snapshot)
    refused = 0
    while not offered(index, memory, 7, 8, 9):
        refused += 1
        assert refused <= 3, "a prompt that comes again is not kept"
    assert refused == 3, "uses count for something"


def test_what_is_still_used_outlives_newcomers(memory: Memory) -> None:
    index = new_index(memory, 2)
    wanted = stored(index, memory, 1, 2, 3)
    for value in range(20, 36):
        index.hit(wanted)
        offered(index, memory, value, value, value)
    assert not wanted.removed


def test_a_spared_snapshot_goes_only_where_no_other_could(memory: Memory) -> None:
    """The tap of a prompt beside its own answer's end, which is worth a little more."""
    index = new_index(memory, 2)
    other, tap = stored(index, memory, 1, 2, 3, 4), stored(index, memory, 5, 6)
    assert index.make_room(walked(index, memory, 5, 6, 7, 8, 9, 10)[-1], 0, spared=tap)
    assert (other.removed, tap.removed) == (True, False)
    alone = new_index(memory, 1)
    tap = stored(alone, memory, 5, 6)
    assert alone.make_room(walked(alone, memory, 5, 6, 7, 8, 9, 10)[-1], 0, spared=tap)
    assert tap.removed


def test_the_root_is_chosen_where_restoring_costs_more(memory: Memory) -> None:
    index = PrefixIndex(memory, 8, PAGE, 10**12, CostModel(256, 10**12))
    stored(index, memory, 1)
    content = Content(tokens(1, tail=5))
    found = index.find(content, 69)
    assert len(found.snapshots) == 1
    assert index.choose(found, 69) is None


def test_costs_follow_what_chunks_take() -> None:
    costs = CostModel(256, IMAGE)
    nominal = costs.prefill_s(0, 256)
    for _ in range(60):
        costs.observe(0, 256, 3 * nominal)
    assert costs.prefill_s(0, 256) == pytest.approx(3 * nominal, rel=1e-3)
    assert costs.prefill_s(0, 512) > 2 * costs.prefill_s(0, 256) - 1e-9
    assert costs.restore_s(True) == 2 * costs.restore_s(False)


def test_content_grows() -> None:
    content = Content(tokens(1, tail=3))
    for token in range(0, 1000, 8):
        content.append(token)
        content.extend(range(token + 1, token + 8))
    assert len(content) == 1067
    assert content.tokens(67, 1067).tolist() == list(range(1000))
    other = Content(tokens(1, tail=3))
    other.extend(range(1000))
    assert other.tokens(0, 1067).tolist() == content.tokens(0, 1067).tolist()
    assert content.tokens(66, 70).tolist() == [9, 0, 1, 2]
    assert content.tail(66) == np.array([9, 9], np.int32).tobytes()
    assert content.block(0) == np.full(64, 1, np.int32).tobytes()
