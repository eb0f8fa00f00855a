"""The outlet: each request ends exactly once, also after everything has ended."""

from __future__ import annotations

from ninfer.engine.events import Delta, Failed, Finished
from ninfer.engine.outlet import Outlet
from tests.engine.requests import Recorder, usage


def test_events_reach_their_own_sink_until_the_end() -> None:
    outlet, first, second = Outlet(), Recorder(), Recorder()
    assert outlet.register("1", first)
    assert outlet.register("2", second)
    end = Finished("1", "stop", usage())
    for event in (
        Delta("1", "content", "a"),
        Delta("2", "content", "b"),
        end,
        Delta("1", "content", "late"),
        end,
    ):
        outlet.deliver(event)
    assert first.events == [Delta("1", "content", "a"), end]
    assert second.events == [Delta("2", "content", "b")]


def test_unknown_requests_are_ignored() -> None:
    Outlet().deliver(Delta("nobody", "content", "a"))


def test_after_the_end_every_request_fails_with_the_first_reason() -> None:
    outlet, open_one, late = Outlet(), Recorder(), Recorder()
    outlet.register("1", open_one)
    outlet.end_all("engine_unavailable", "gone")
    outlet.end_all("service_unavailable", "stopping")
    assert not outlet.register("2", late)
    assert open_one.events == [Failed("1", "engine_unavailable", "gone")]
    assert late.events == [Failed("2", "engine_unavailable", "gone")]
    assert outlet.ended
