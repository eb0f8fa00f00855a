"""The proposal head of an artifact, for every backend: whether there is one, and the ids of its rows."""

from __future__ import annotations

from typing import Protocol, TypeVar

from ninfer.artifact import Proposal
from ninfer.errors import ArtifactError, OptionError
from ninfer.model.config import TextConfig


class Ids(Protocol):
    """An array of ids."""

    def tolist(self) -> list[int]:
        """As numbers."""
        ...


IdsT = TypeVar("IdsT", bound=Ids, covariant=True)


class ProposalSource(Protocol[IdsT]):
    """Parameters of an artifact that may have a proposal head."""

    @property
    def proposal(self) -> Proposal | None:
        """What is said of it."""
        ...

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Errors: ``ArtifactError`` for a parameter of another shape."""
        ...

    def integers(self, name: str) -> IdsT:
        """A parameter of ids."""
        ...


def proposal_ids(source: ProposalSource[IdsT], config: TextConfig) -> IdsT | None:
    """Ids of the rows of ``proposal/head``, whose shape is right then (None: row n is id n).

    Errors: ``OptionError`` where the artifact has none, ``ArtifactError`` where its ids are no set.
    """
    proposal = source.proposal
    if proposal is None:
        raise OptionError("--lm-head-draft", "the artifact has no proposal head; leave the option out")
    rows = config.vocab if proposal.rows is None else proposal.rows
    source.check_shape("proposal/head", (rows, config.hidden))
    if proposal.rows is None:
        return None
    source.check_shape("proposal/token_ids", (rows,))
    ids = source.integers("proposal/token_ids")
    numbers = ids.tolist()
    if len(set(numbers)) < len(numbers) or min(numbers) < 0 or max(numbers) >= config.vocab:
        raise ArtifactError("bindings.proposal/token_ids", f"must be different ids in 0..{config.vocab - 1}")
    return ids
