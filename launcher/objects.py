"""Making a run's objects so: create, or find that ours is there. Every step may be repeated by any replica."""

import random
from collections.abc import Awaitable, Callable
from datetime import datetime

import structlog

from isolation import labels
from launcher.cluster.errors import AlreadyExists, Refused
from launcher.cluster.port import Json, Kind
from launcher.context import Context
from launcher.errors import PodgateError

_log = structlog.get_logger()

QUOTA_PAUSE = 2.0
"""Seconds, upper bound of the first pause while a quota is exhausted; it doubles up to the longest."""
QUOTA_PAUSE_LONGEST = 10.0


async def ensure(context: Context, kind: Kind, body: Json, *, until: datetime) -> Json:
    """Create an object, or return ours that is there already, as the server stores it.

    An exhausted quota is waited for until ``until`` (the API server's clock). Raises ``foreign_object``,
    ``quota_exhausted``, and ClusterError.
    """
    return await _within_quota(context, lambda: _created_or_found(context, kind, body), until)


async def ensure_secret(context: Context, body: Json, *, until: datetime) -> None:
    """Create the run's Secret.

    It cannot be read back; its name carries the record's uid, so one of that name is ours.
    """

    async def create() -> Json:
        try:
            return await context.cluster.create(Kind.SECRET, context.namespace, body)
        except AlreadyExists:
            return body

    await _within_quota(context, create, until)


async def _created_or_found(context: Context, kind: Kind, body: Json) -> Json:
    name = str(body["metadata"]["name"])
    while True:
        try:
            return await context.cluster.create(kind, context.namespace, body)
        except AlreadyExists:
            stored = await context.cluster.get(kind, context.namespace, name)
        if stored is not None:  # else it went between the two calls, and the create is tried again
            _require_ours(body, stored)
            return stored


def _require_ours(sent: Json, stored: Json) -> None:
    """Whose it is; attestation says afterwards whether it is what was sent."""
    for what, of in (("run", _run_id), ("owner", _owner_uids)):
        if of(sent) != of(stored):
            kind, name = sent["kind"], sent["metadata"]["name"]
            raise PodgateError(
                "foreign_object",
                f"{kind} {name} is there and has another {what}; it was left as it is.",
                stage="provision",
            )


def _run_id(body: Json) -> object:
    return (body["metadata"].get("annotations") or {}).get(labels.RUN_ID)


def _owner_uids(body: Json) -> list[object]:
    return [owner.get("uid") for owner in body["metadata"].get("ownerReferences") or ()]


async def _within_quota(context: Context, create: Callable[[], Awaitable[Json]], until: datetime) -> Json:
    bound = QUOTA_PAUSE
    while True:
        try:
            return await create()
        except Refused as error:
            if not error.quota:
                raise
            left = (until - context.cluster.now()).total_seconds()
            if left <= 0:
                raise PodgateError("quota_exhausted", f"{error.message or error}", stage="provision") from error
            _log.info("waiting_for_quota", seconds_left=round(left))
        await context.sleep(min(random.uniform(0.5, bound), left))  # noqa: S311 - jitter, not a secret
        bound = min(bound * 2, QUOTA_PAUSE_LONGEST)
