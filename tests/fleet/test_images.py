"""The agent image: looked for at the start, built in the background, tried again, and what is said of it meanwhile."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from host import images
from host.images import RETRY_SECONDS, SETTING_SECONDS, Images
from host.runtime.base import Probe, RuntimeName, RuntimeUnavailable
from host.runtime.image import BuildFailed
from host.settings import DEFAULTS, CurrentSettings
from tests.fakes.clock import FakeClock
from tests.fakes.runner_hand import Hand
from tests.fakes.runtime import ScriptedRuntime
from tests.fleet.house import until

TODAYS = "innkeeper-agent:today"
AWAY = "No container engine answers at unix:///x. Start it (sudo systemctl start docker)."
BROKEN = "The agent image could not be made on its usual base. The build's last lines:\nE: no network"


class Builder:
    """An engine's images; implements host.images.Builder."""

    def __init__(self) -> None:
        self.images: set[str] = set()
        self.away = False
        self.build_fails: Exception | None = None
        self.prune_fails = False
        self.builds = 0
        self.pruned: list[str] = []
        self.gate = threading.Event()
        """Looking and building wait for it."""
        self.gate.set()

    def image_tag(self) -> str:
        return TODAYS

    def image_exists(self, tag: str) -> bool:
        self.gate.wait()
        self._answer()
        return tag in self.images

    def build(self, progress: Callable[[str], None]) -> str:
        self.builds += 1
        progress("Step 1")
        self.gate.wait()
        if self.build_fails is not None:
            raise self.build_fails
        progress("Step 2")
        self.images.add(TODAYS)
        return TODAYS

    def prune_images(self, in_use: str) -> list[str]:
        if self.prune_fails:
            raise RuntimeUnavailable(AWAY)
        self.pruned = sorted(self.images - {in_use})
        self.images = {in_use}
        return self.pruned

    def _answer(self) -> None:
        if self.away:
            raise RuntimeUnavailable(AWAY)


class Ground:
    image_ready = False


class Engine(ScriptedRuntime):
    """One that finds something about itself worth saying, from inside a container."""

    remark: tuple[str, ...] = ()

    async def probe(self) -> Probe:
        probe = await super().probe()
        return replace(probe, problems=(*probe.problems, *self.remark))


class Scene:
    """Images over an engine that can be taken away."""

    def __init__(self, clock: FakeClock, hand: Hand, runtime: str) -> None:
        self.clock = clock
        self.engine = Engine(RuntimeName.DOCKER, hand, clock)
        self.builder = Builder()
        self.ground = Ground()
        self.settings = CurrentSettings(replace(DEFAULTS, runtime=runtime))
        self.images = Images(self.engine, self.ground, self.settings, clock, self.builder)

    def set_away(self, away: bool) -> None:
        self.builder.away = away
        self.engine.away = RuntimeUnavailable(AWAY) if away else None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """`run`, until it waits for the first time."""
        task = asyncio.create_task(self.images.run())
        try:
            await self.until_it_waits()
            yield
        finally:
            self.builder.gate.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until_it_waits(self) -> None:
        await until(lambda: self.clock._sleepers or not self.builder.gate.is_set())


Make = Callable[..., Scene]


@pytest.fixture
def make(clock: FakeClock, hand: Hand) -> Make:
    return lambda runtime="auto": Scene(clock, hand, runtime)


async def nothing(_line: object) -> None:
    """Somebody who is told and does not care."""


async def test_an_image_that_is_there_at_the_start_is_used_at_once(make: Make) -> None:
    scene = make()
    scene.builder.images = {TODAYS, "innkeeper-agent:old"}
    await scene.images.look()
    assert (scene.ground.image_ready, scene.images.state, scene.images.problem) == (True, "ready", "")
    async with scene.running():
        assert scene.builder.builds == 0


@pytest.mark.parametrize("away", [True, False], ids=["no engine", "no image"])
async def test_a_start_does_not_fail_where_there_is_nothing_to_be_found(make: Make, away: bool) -> None:
    scene = make()
    scene.set_away(away)
    await scene.images.look()
    assert (scene.ground.image_ready, scene.images.state) == (False, "not looked at yet")


async def test_a_start_does_not_wait_for_an_engine_that_hangs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = make()
    scene.builder.images = {TODAYS}
    scene.builder.gate.clear()
    monkeypatch.setattr(images, "LOOK_SECONDS", 0.01)
    try:
        await scene.images.look()
    finally:
        scene.builder.gate.set()
    assert not scene.ground.image_ready


@pytest.mark.req("R273")
async def test_a_missing_image_is_built_in_the_background_and_earlier_ones_go(make: Make) -> None:
    scene = make()
    scene.builder.images = {"innkeeper-agent:old"}
    scene.builder.gate.clear()
    async with scene.running():
        scene.builder.gate.set()
        await scene.until_it_waits()
        assert (scene.ground.image_ready, scene.images.state, scene.images.problem) == (True, "ready", "")
        assert (scene.builder.builds, scene.builder.pruned) == (1, ["innkeeper-agent:old"])
        await scene.clock.advance(RETRY_SECONDS)
        await scene.until_it_waits()
        assert scene.builder.builds == 1


async def test_while_it_is_built_the_state_says_so_and_containers_are_not_used(make: Make) -> None:
    scene = make()
    told: list[object] = []

    async def tell(line: object) -> None:
        if not told:
            assert (scene.images.state, scene.ground.image_ready) == ("building the image", False)
        told.append(line)

    assert await scene.images.make_ready(tell) == (TODAYS, True)
    await until(lambda: len(told) == 2)
    assert told == ["Step 1", "Step 2"]
    assert await scene.images.make_ready(tell) == (TODAYS, False)
    assert scene.builder.builds == 1


async def test_two_who_want_it_at_once_build_it_once(make: Make) -> None:
    scene = make()
    both = await asyncio.gather(scene.images.make_ready(nothing), scene.images.make_ready(nothing))
    assert sorted(built for _, built in both) == [False, True]
    assert scene.builder.builds == 1


async def test_an_image_is_used_though_the_earlier_ones_could_not_be_removed(make: Make) -> None:
    scene = make()
    scene.builder.prune_fails = True
    assert await scene.images.make_ready(nothing) == (TODAYS, True)
    assert (scene.ground.image_ready, scene.images.state) == (True, "ready")


async def test_an_engine_that_is_away_is_named_and_used_when_it_comes_back(make: Make) -> None:
    scene = make()
    scene.set_away(True)
    async with scene.running():
        assert (scene.images.state, scene.images.problem) == ("no engine", AWAY)
        scene.set_away(False)
        await scene.clock.advance(RETRY_SECONDS - 1)
        assert scene.images.state == "no engine"
        await scene.clock.advance(1)
        await until(lambda: scene.ground.image_ready)
        await scene.until_it_waits()
        assert (scene.images.state, scene.images.problem) == ("ready", "")


@pytest.mark.parametrize("failure", [BuildFailed(BROKEN), RuntimeUnavailable(AWAY)])
async def test_a_build_that_fails_is_told_in_its_own_words_and_tried_again_later(
    make: Make, failure: Exception
) -> None:
    scene = make()
    scene.builder.build_fails = failure
    async with scene.running():
        assert (scene.images.state, scene.images.problem) == ("the build failed", str(failure))
        assert not scene.ground.image_ready
        scene.builder.build_fails = None
        await scene.clock.advance(RETRY_SECONDS)
        await until(lambda: scene.ground.image_ready)
        await scene.until_it_waits()
        assert (scene.images.state, scene.images.problem, scene.builder.builds) == ("ready", "", 2)


async def test_who_asked_for_a_build_is_given_its_failure(make: Make) -> None:
    scene = make()
    scene.builder.build_fails = BuildFailed(BROKEN)
    with pytest.raises(BuildFailed, match="no network"):
        await scene.images.make_ready(nothing)
    assert (scene.images.state, scene.images.problem) == ("the build failed", BROKEN)


async def test_what_a_usable_engine_lacks_stays_to_be_read(make: Make) -> None:
    scene = make()
    scene.engine.remark = ("Memory limits do not hold.",)
    async with scene.running():
        assert (scene.images.state, scene.images.problem) == ("ready", "Memory limits do not hold.")


async def test_a_changed_setting_is_noticed_soon(make: Make) -> None:
    scene = make("process")
    async with scene.running():
        assert (scene.images.state, scene.builder.builds) == ("not looked at yet", 0)
        scene.settings.value = replace(scene.settings.value, runtime="docker")
        await scene.clock.advance(SETTING_SECONDS)
        await until(lambda: scene.ground.image_ready)
        assert scene.builder.builds == 1
