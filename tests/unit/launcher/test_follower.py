"""Following the prover over execs that break, and carrying the marker over whichever is open."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import isolation_samples as samples
import pytest
from launch_world import refused

from launcher.cluster.errors import ExecFailed
from launcher.follower import LINE_LIMIT, REFOLLOW_SECONDS, SILENCE_SECONDS, Follower
from launcher.settings import Settings
from launcher.testing.virtual_time import VirtualLoop

pytestmark = pytest.mark.anyio

MARKER = {"podUid": "pod-1", "startId": "s", "epoch": 1, "seedSha256": "f" * 64}


@pytest.fixture
def anyio_backend():
    return "asyncio", {"loop_factory": VirtualLoop}


def state(*, standing=False, since=None, start="s", ever=None, verdict="open", **more):
    last = {"verdict": "proven" if standing else verdict, "family": "4", "detail": "", "age": 0.1}
    since = (since or 10.0) if standing else None
    return (
        {"startId": start, "standing": standing, "standingSince": since, "everStood": ever or standing}
        | {"last": last}
        | more
    )


STANDS = state(standing=True)


class Stream:
    """One exec: what is put into ``lines`` is received, what was sent is kept."""

    def __init__(self):
        self.pieces, self.sent, self.broken = asyncio.Queue(), [], False

    def says(self, *lines):
        for line in lines:
            self.pieces.put_nowait(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def ends(self):
        self.pieces.put_nowait(None)

    def breaks(self):
        self.broken = True
        self.pieces.put_nowait(ExecFailed("exec", reason="cut", started=True))

    async def receive(self):
        piece = await self.pieces.get()
        if isinstance(piece, Exception):
            raise piece
        return piece

    async def send(self, data):
        if self.broken:
            raise ExecFailed("exec", reason="cut", started=True)
        self.sent.append(data)


@dataclass
class Cluster:
    """Hands out streams, one for each exec; an error in their place is raised. Plays the whole context."""

    streams: list = field(default_factory=list)
    opened: list = field(default_factory=list)
    namespace = "podgate"
    settings = Settings(isolation=samples.options())
    sleep = staticmethod(asyncio.sleep)

    @property
    def cluster(self):
        return self

    def monotonic(self):
        return asyncio.get_running_loop().time()

    @asynccontextmanager
    async def exec(self, namespace, pod, container, argv):
        self.opened.append((namespace, pod, container, self.monotonic()))
        stream = self.streams.pop(0) if self.streams else Stream()
        if isinstance(stream, Exception):
            raise stream
        yield stream


class Following:
    """A follower that runs on the given streams; the gate lives until ``gate_ends``."""

    def __init__(self, *streams):
        self.context = Cluster(list(streams))
        self.alive = True
        self.follower = Follower(self.context, "pod", gate_alive=lambda: self.alive)
        self.task = asyncio.create_task(self.follower.run())


@asynccontextmanager
async def following(*streams):
    it = Following(*streams)
    try:
        yield it
    finally:
        it.task.cancel()
        await asyncio.gather(it.task, return_exceptions=True)


async def test_it_knows_the_newest_state():
    async with following(one := Stream()) as it:
        one.says(state(rounds=1), state(rounds=2))
        await asyncio.sleep(1)
        assert it.follower.state.rounds == 2
        assert it.context.opened == [("podgate", "pod", "gate", 0.0)]


async def test_a_line_may_come_in_any_pieces():
    async with following(one := Stream()) as it:
        whole = json.dumps(STANDS).encode() + b"\n"
        one.says(*(whole[at : at + 7] for at in range(0, len(whole), 7)))
        await asyncio.sleep(1)
        assert it.follower.state.standing


@pytest.mark.parametrize("line", [b"\n", b"no json\n", b"[1]\n", b'{"waiting":"refused"}\n', b"\xff\xfe\n"])
async def test_lines_that_are_no_state_are_passed_over(line):
    async with following(one := Stream()) as it:
        one.says(line, STANDS)
        assert (await it.follower.standing(within=5)).standing


async def test_a_line_without_an_end_is_not_kept_for_ever():
    async with following(one := Stream()) as it:
        one.says(*[b"x" * 1024] * (LINE_LIMIT // 1024 + 1))
        error = await refused(it.task)
    assert error.code == "probe_unusable"


async def test_a_broken_exec_is_opened_again_after_a_pause():
    refusal = ExecFailed("exec", status=500, started=False)
    async with following(one := Stream(), refusal, refusal, two := Stream()) as it:
        one.breaks()
        two.says(STANDS)
        assert (await it.follower.standing(within=60)).standing
        times = [at for *_, at in it.context.opened]
    assert times == pytest.approx([0, REFOLLOW_SECONDS, 2 * REFOLLOW_SECONDS, 3 * REFOLLOW_SECONDS])


async def test_following_ends_with_the_gate():
    async with following(one := Stream()) as it:
        await asyncio.sleep(0)
        it.alive = False
        one.ends()
        await asyncio.wait_for(it.task, 5)


# --- standing ---


async def test_standing_waits_for_the_proof():
    async with following(one := Stream()) as it:
        waiting = asyncio.create_task(it.follower.standing(within=60))
        one.says(state(), state())
        await asyncio.sleep(30)
        assert not waiting.done()
        one.says(STANDS)
        assert (await waiting).standing_since == 10.0


@pytest.mark.parametrize(("verdict", "code"), [("open", "policy_not_enforced"), ("unserved", "witness_unserved")])
async def test_the_bound_names_what_the_last_round_saw(verdict, code):
    async with following(one := Stream()) as it:
        talking = asyncio.create_task(talk(one, state(verdict=verdict)))
        error = await refused(it.follower.standing(within=60))
        assert (error.code, it.context.monotonic()) == (code, pytest.approx(60, abs=0.1))
        talking.cancel()


async def talk(stream, line):
    """Say the same again and again, as a prover does with every round."""
    while True:
        stream.says(line)
        await asyncio.sleep(0.25)


async def test_a_prover_that_only_says_that_it_waits_is_unusable_at_the_bound():
    async with following(one := Stream()) as it:
        talking = asyncio.create_task(talk(one, {"waiting": "connection refused"}))
        error = await refused(it.follower.standing(within=8))
        talking.cancel()
    assert error.code == "probe_unusable"


@pytest.mark.parametrize("how", ["breaks", "says"])
async def test_what_was_heard_before_a_silence_is_no_last_word(how):
    async with following(one := Stream(), two := Stream()) as it:
        one.says(state())
        getattr(one, how)()
        waiting = asyncio.create_task(it.follower.standing(within=8))
        await asyncio.sleep(8 + SILENCE_SECONDS)
        assert not waiting.done()
        (two if how == "breaks" else one).says(STANDS)
        assert (await waiting).standing


# --- a proof that falls ---


FALLS = {
    "open": (state(ever=True), "policy_not_enforced_before_release"),
    "blind": (state(ever=True, verdict="unavailable"), "witness_unavailable_before_release"),
    "stood up again": (state(standing=True, since=12.0), "probe_unusable_before_release"),
    "another prover": (state(standing=True, start="t"), "gate_restarted"),
}


@pytest.mark.parametrize(("fallen", "code"), FALLS.values(), ids=FALLS)
async def test_a_proof_that_stood_and_fell_ends_the_following(fallen, code):
    async with following(one := Stream()) as it:
        one.says(STANDS, fallen)
        error = await refused(it.task)
    assert error.code == code


async def test_a_fall_that_happened_while_nobody_looked_is_found():
    async with following(one := Stream(), two := Stream()) as it:
        one.says(STANDS)
        one.breaks()
        two.says(state(standing=True, since=12.0))
        error = await refused(it.task)
    assert error.code.endswith("_before_release")


async def test_once_the_marker_is_sent_the_gate_has_the_last_word():
    async with following(one := Stream()) as it:
        marking = asyncio.create_task(it.follower.mark(MARKER))
        await asyncio.sleep(1)
        one.says(STANDS, state(ever=True))
        await asyncio.sleep(1)
        assert (it.task.done(), it.follower.state.standing) == (False, False)
        marking.cancel()


# --- the marker ---


@asynccontextmanager
async def marking(it):
    task = asyncio.create_task(it.follower.mark(MARKER))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_marker_is_sent_once_over_one_stream():
    async with following(one := Stream()) as it, marking(it):
        await asyncio.sleep(5)
        one.says(state(), state())
        await asyncio.sleep(5)
    assert [json.loads(sent) for sent in one.sent] == [MARKER]
    assert one.sent[0].endswith(b"\n")


async def test_the_marker_is_sent_again_over_the_next_stream():
    async with following(one := Stream(), two := Stream()) as it, marking(it):
        await asyncio.sleep(1)
        one.breaks()
        await asyncio.sleep(2)
    assert [json.loads(sent) for sent in two.sent] == [MARKER]


async def test_a_marker_that_could_not_be_sent_waits_for_the_next_stream():
    one, two = Stream(), Stream()
    one.broken = True
    async with following(one, two) as it, marking(it):
        await asyncio.sleep(1)
        one.ends()
        await asyncio.sleep(2)
    assert (one.sent, len(two.sent)) == ([], 1)
