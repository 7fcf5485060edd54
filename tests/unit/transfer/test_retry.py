"""How often a transfer is tried again, and what counts as a try."""

import pytest

from launcher.cluster.errors import ExecFailed, NotFound, Throttled, Unreachable
from launcher.transfer.framing import TransferBroken
from launcher.transfer.retry import LONGEST_PAUSE_SECONDS, OUTAGE_SECONDS, TRIES, tried

pytestmark = pytest.mark.anyio

NOBODY = {
    "no connection": ExecFailed("exec", reason="ClientConnectorError", started=False),
    "starting": ExecFailed("exec", status=503, reason="HandshakeRefused", started=False),
    "unreachable": Unreachable("exec", sent=False),
    "throttled": Throttled("exec"),
}
A_TRY = {
    "no such container": ExecFailed("exec", status=500, reason="InternalError", started=False),
    "cut": ExecFailed("exec", reason="cut", started=True),
    "broken": TransferBroken("stalled"),
}


class Attempts:
    """Fails so many times, then succeeds; notes the pauses in between."""

    def __init__(self, *errors):
        self._errors = list(errors)
        self.made, self.pauses = 0, []

    async def __call__(self):
        self.made += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"

    async def sleep(self, seconds):
        self.pauses.append(seconds)


@pytest.mark.parametrize("error", A_TRY.values(), ids=A_TRY)
async def test_a_transfer_that_broke_is_tried_three_times(error):
    attempts = Attempts(*[error] * (TRIES - 1))
    assert await tried(attempts, sleep=attempts.sleep) == "done"
    hopeless = Attempts(*[error] * 99)
    with pytest.raises(TransferBroken):
        await tried(hopeless, sleep=hopeless.sleep)
    assert hopeless.made == TRIES


@pytest.mark.parametrize("error", NOBODY.values(), ids=NOBODY)
async def test_an_outage_is_waited_for_and_takes_no_try(error):
    attempts = Attempts(A_TRY["cut"], *[error] * 12, A_TRY["cut"])
    assert await tried(attempts, sleep=attempts.sleep) == "done"
    assert max(attempts.pauses) <= LONGEST_PAUSE_SECONDS


async def test_an_outage_that_does_not_end_is_given_up():
    attempts = Attempts(*[NOBODY["no connection"]] * 999)
    with pytest.raises(TransferBroken):
        await tried(attempts, sleep=attempts.sleep)
    assert OUTAGE_SECONDS <= sum(attempts.pauses) < OUTAGE_SECONDS + LONGEST_PAUSE_SECONDS


async def test_what_time_does_not_heal_is_told_at_once():
    attempts = Attempts(NotFound("exec", status=404))
    with pytest.raises(NotFound):
        await tried(attempts, sleep=attempts.sleep)
    assert attempts.made == 1
