"""Cases of integers and copies: draws by the sampling rules, and rows moved for drafters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ninfer.fast.ops.carry import gpu as carry_gpu
from ninfer.fast.ops.carry.gpu import COUNT_PLACE, MARK_KINDS, MARKS, TABLE_PAGE, TABLE_PLACE
from ninfer.fast.ops.gpu_control import BLOCK_WORDS, ROW_WORDS
from ninfer.fast.ops.rows import gpu as rows_gpu
from ninfer.fast.ops.select import gpu as select
from ninfer.fast.ops.select.contract import CANDIDATES, DEAD_END, NOT_A_NUMBER
from ninfer.sampling.draw import select_token
from ninfer.sampling.parameters import SamplingParameters
from tools.gpu_check.op_cases.setting import Row, Setting, different, poison


def _sampler(row: int, seed: int) -> SamplingParameters:
    """Every rule in turn."""
    return SamplingParameters(
        (0.0, 1.0, 0.7)[row % 3], (1.0, 0.9)[row % 2], (0, 5)[row % 2], (0.0, 0.1)[row % 2],
        (0.0, 1.5)[row % 2], 0.3 * (row % 2), seed,
    )  # fmt: skip


def tokens(s: Setting, vocabulary: int, widths: Sequence[int]) -> Iterator[Row]:
    """Rows with and without penalties and masks; behind them one with a NaN and one without candidates.

    Tokens and the counts kept on the device must be equal.
    """
    for width in widths:
        yield from _tokens(s, vocabulary, width)


def _tokens(s: Setting, vocabulary: int, width: int) -> Iterator[Row]:
    random, count, padded = np.random.default_rng(width), width + 2, vocabulary + 100
    logits = (4 * random.standard_normal((count, padded), np.float32)).round() / 4
    logits[:, vocabulary + 90] = 100  # outside the vocabulary
    logits[width, 77], logits[width + 1] = np.nan, -np.inf
    numbers = np.zeros((count, select.NUMBERS))
    words = np.full((count, select.WORDS), -1, np.int64)
    counts = random.integers(0, 3, (count, padded)).astype(np.int32)
    masks = np.zeros((count, -(-padded // 32)), np.int32)
    samplers, allowed = [], []
    for row in range(count):
        seed = int(random.integers(0, 2**64, dtype=np.uint64))
        p = _sampler(row, seed)
        samplers.append(p)
        numbers[row, :6] = p.temperature, p.top_p, p.min_p, p.presence_penalty, p.frequency_penalty, p.top_k
        words[row, select.SEED] = select.unsigned_to_signed(seed)
        words[row, select.PLACE] = 100 + row
        if row % 2:
            words[row, select.COUNTS] = row
            words[row, select.COUNTED] = random.integers(0, vocabulary)
        mask = None
        if row % 4 == 2 and row < width:
            mask = random.random(padded) < 0.1
            words[row, select.MASK] = row
            bits = np.zeros(masks.shape[1] * 32, np.bool_)
            bits[:padded] = mask
            masks[row] = np.packbits(bits, bitorder="little").view(np.int32)
        allowed.append(mask)
    slices = select.slices_of(vocabulary)
    on = {name: torch.from_numpy(part.copy()).to(s.device) for name, part in (
        ("logits", logits), ("numbers", numbers), ("words", words), ("counts", counts), ("masks", masks)
    )}  # fmt: skip
    best = torch.zeros(count, slices, CANDIDATES, dtype=torch.int64)
    flags = torch.zeros(count, slices, dtype=torch.int32)
    drawn = torch.zeros(count, dtype=torch.int32)
    select.select(
        on["logits"], on["numbers"], on["words"], on["counts"], on["masks"], vocabulary, best, flags, drawn,
        count,
    )  # fmt: skip
    wanted = [
        select_token(
            logits[row], samplers[row], _seen(counts, words, row), 100 + row, mask=allowed[row],
            vocabulary=vocabulary,
        )
        for row in range(width)
    ]  # fmt: skip
    wanted += [NOT_A_NUMBER, DEAD_END]
    found = np.array(drawn.tolist())
    yield Row("select", "", width, float((found != np.array(wanted)).sum()), 0)
    after = np.stack([_seen(counts, words, row) for row in range(count)])
    yield Row("select counts", "", width, float((on["counts"].cpu().numpy() != after).sum()), 0)


def _seen(counts: np.ndarray, words: np.ndarray, row: int) -> np.ndarray:
    """A lane's counts with the token that its row took in."""
    seen = counts[row].copy()
    if words[row, select.COUNTS] >= 0:
        seen[words[row, select.COUNTED]] += 1
    return seen


def moved(s: Setting, hidden: int, widths: Sequence[int]) -> Iterator[Row]:
    """Last rows into state images, rows gathered back, drafts one place further."""
    for width in widths:
        stream, images = torch.randn(2 * width, hidden), torch.randn(width + 1, hidden + 24)
        blocks = torch.zeros(width, BLOCK_WORDS, dtype=torch.int32)
        index = torch.arange(width, dtype=torch.int32)
        # Blocks of two rows, every third of which does not commit.
        blocks[:, 0], blocks[:, 1], blocks[:, 2], blocks[:, 3] = 2 * index, 2, width - index, index % 3 != 1
        wanted = images.clone()
        for i in range(width):
            if i % 3 != 1:
                wanted[width - i, 16 : 16 + hidden] = stream[2 * i + 1]
        rows_gpu.keep_last(stream, images, 16, blocks, width)
        yield Row("rows keep", "", width, different(images, wanted), 0)
        control = torch.zeros(width, ROW_WORDS, dtype=torch.int32)
        chunk = torch.randn(width, hidden)
        places = torch.stack((2 * index, -1 - index, 2 * width + index), 1)
        control[:, 6] = places[torch.arange(width), (index % 3).long()]
        y = poison(width + 1, hidden)
        rows_gpu.gather(stream, chunk, images, 16, control, y, width)
        sources = [(stream[2 * i], images[i, 16 : 16 + hidden], chunk[i])[i % 3] for i in range(width)]
        wrong = different(y[:width], torch.stack(sources)) + float((~y[width].isnan()).sum())
        yield Row("rows gather", "", width, wrong, 0)
        yield from _advanced(width)


def _advanced(width: int) -> Iterator[Row]:
    index = torch.arange(width, dtype=torch.int32)
    for names in (None, torch.arange(3, 4 * width + 3, 4, dtype=torch.int32)):
        drawn = torch.where(index % 5 == 4, -1, index)
        rows = torch.randint(0, 99, (width, ROW_WORDS), dtype=torch.int32)
        blocks = torch.randint(0, 99, (width, BLOCK_WORDS), dtype=torch.int32)
        words = torch.randint(0, 99, (width, select.WORDS))
        words[:, select.EARLIER] = index % 3
        drafts = torch.full((width, 4), -7, dtype=torch.int32)
        ids = torch.where(drawn >= 0, drawn if names is None else 4 * drawn + 3, drawn)
        wanted = [part.clone() for part in (rows, blocks, words, drafts)]
        wanted[0][:, 0] = ids.clamp(min=0)
        wanted[0][:, 1:5] += 1
        wanted[1][:, 4] += 1
        wanted[2][:, select.PLACE] += 1
        wanted[2][:, select.EARLIER] += 1
        wanted[3][torch.arange(width), (index % 3).long()] = ids
        told = _host(width, 4)
        rows_gpu.advance(drawn, names, rows, blocks, words, drafts, told, width)
        wrong = sum(different(a, b) for a, b in zip((rows, blocks, words, drafts), wanted, strict=True))
        told = told.to(drafts.device)
        wrong += different(told[drafts != -7], drafts[drafts != -7]) + float((told[drafts == -7] != 0).sum())
        yield Row("rows advance", "" if names is None else "named", width, wrong, 0)


def _host(*shape: int) -> torch.Tensor:
    """Zeroed int32 memory of the host that kernels of the current device reach."""
    cuda = torch.get_default_device().type == "cuda"
    return torch.zeros(*shape, dtype=torch.int32, device="cpu", pin_memory=cuda)


def carried(s: Setting, widths: Sequence[int]) -> Iterator[Row]:
    """Records out of pinned memory, with changed tables and counts; and those of a ring one after another."""
    for width in widths:
        source, marks = _host(width * 48), _host(MARK_KINDS, MARKS)
        source.random_(-9, 9)
        marks.fill_(-1)
        tables, counts = torch.zeros(3, 2 * MARKS, dtype=torch.int32), torch.ones(2, 99, dtype=torch.int32)
        changed = min(3 * width, MARKS)
        marks[TABLE_PLACE, :changed] = 2 * torch.arange(changed, dtype=torch.int32, device="cpu") + 1
        marks[TABLE_PAGE, :changed] = torch.arange(changed, dtype=torch.int32, device="cpu") + 5
        counted = torch.randint(0, 2 * 99, (changed,), dtype=torch.int32, device="cpu")
        counted[0] = 197  # the last one, and some stand there twice
        marks[COUNT_PLACE, :changed] = counted
        target = torch.full((width * 48 + 1,), 77, dtype=torch.int32)
        carry_gpu.arrive(source, target[:-1], marks, tables, counts)
        wanted = torch.ones(2 * 99, dtype=torch.int32, device="cpu")
        wanted.index_add_(0, counted.long(), torch.ones(changed, dtype=torch.int32, device="cpu"))
        told = torch.zeros(6 * MARKS, dtype=torch.int32, device="cpu")
        told[marks[TABLE_PLACE, :changed].long()] = marks[TABLE_PAGE, :changed]
        wrong = different(target[:-1].cpu(), source) + float(int(target[-1]) != 77)
        wrong += different(counts.cpu().view(-1), wanted) + different(tables.cpu().view(-1), told)
        yield Row("carry arrive", "", width, wrong, 0)
        part = torch.full((width * 48,), 99, dtype=torch.int32)
        carry_gpu.carry(source, part, 8)
        wrong = different(part[:8].cpu(), source[:8]) + float((part[8:] != 99).sum())
        yield Row("carry part", "", width, wrong, 0)
        ring, cursor = _host(2 * width + width // 2, ROW_WORDS), torch.zeros(1, dtype=torch.int32)
        ring.random_(0, 99)
        rows, wrong = torch.zeros(width, ROW_WORDS, dtype=torch.int32), 0.0
        for begin in (0, width, 0):  # the third does not fit behind the second
            carry_gpu.pull(ring, cursor, rows, width)
            wrong += different(rows.cpu(), ring[begin : begin + width])
        yield Row("carry ring", "", width, wrong + float(int(cursor) != width), 0)
