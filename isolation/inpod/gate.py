"""Holds the worker closed until both keys are there: the launcher's marker, and the prover's standing proof.

Environment: PODGATE_POD_UID (downward API). Config: ``root``, ``healthPort``, ``boundSeconds`` (from this start),
``terminationLog``. The termination message says why, with the prover's state. Exit codes:

0 opened · 40 marker without a standing proof · 41 prover unknown, restarted or away · 42 marker refused (uid, epoch,
digest) · 43 ended by a signal · 44 bound over · 45 seed missing or damaged
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # no stub in typeshed; signal itself imports enum: slow
import errno
import fcntl
import os
import stat
import sys
import time

from isolation.inpod.wire import ask, dump, parse_object

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

NO_PROOF, NO_PROVER, BAD_MARKER, SIGNALLED, BOUND_OVER, BAD_SEED = 40, 41, 42, 43, 44, 45
POLL_SECONDS = 0.05
PROVER_SECONDS = 2.0
PROVER_TRIES = 3
LOCK_SECONDS = 5.0
MARKER_LIMIT = 4096
SEED_LIMIT = 64 << 10
MESSAGE_LIMIT = 4000
"""Bytes of the termination message: the kubelet keeps the last 4,096, and would cut the JSON in front."""
AREA_MODE = 0o2770
"""For worker and group alone; what is made inside belongs to the group."""
AREAS = ("workspace", "input", "output")


class Closed(Exception):
    """The gate stays closed: exit code, stable code and sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Gate:
    """One life of the gate."""

    def __init__(self, config: dict[str, Any], pod_uid: str) -> None:
        self.config, self.pod_uid = config, pod_uid
        self.root: str = config["root"]
        self.marker_path = os.path.join(self.root, ".marker")
        self.until = time.monotonic() + config["boundSeconds"]
        self.state: Optional[dict[str, Any]] = None

    def run(self) -> None:
        """Return when the worker may start. Raises Closed."""
        self._prepare()
        marker = self._wait()
        held = self._lock()
        try:
            self._check_marker(marker)
            self._check_seed(marker)
            self._release(marker)
            self._confirm(marker)
        except BaseException:
            os.close(held)
            raise
        # The lock is kept until this process ends: no receiver may put another seed in place any more.

    def _prepare(self) -> None:
        """A marker from before this start is nobody's key.

        The areas exist from the start, 2770 for worker and group.
        """
        try:
            os.unlink(self.marker_path)
        except FileNotFoundError:
            pass
        os.umask(0)
        for area in AREAS:
            path = os.path.join(self.root, "current", area)
            os.makedirs(path, exist_ok=True)
            os.chmod(path, AREA_MODE)

    def _wait(self) -> dict[str, Any]:
        while time.monotonic() < self.until:
            text = read_small(self.marker_path, MARKER_LIMIT)
            if text is not None:
                try:
                    return parse_object(text)
                except ValueError:
                    raise Closed(BAD_MARKER, "marker_refused", "the marker is not a JSON object") from None
            time.sleep(POLL_SECONDS)
        raise Closed(BOUND_OVER, "pod_start_timeout", "no marker came within %d s" % self.config["boundSeconds"])

    def _lock(self) -> int:
        """Keep receivers from replacing the seed between its check and the worker's start."""
        until = time.monotonic() + LOCK_SECONDS
        held = os.open(os.path.join(self.root, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Closed(BAD_SEED, "seed_failed", "a receiver is still putting a seed in place") from None
                time.sleep(POLL_SECONDS)
            else:
                return held

    def _check_marker(self, marker: dict[str, Any]) -> None:
        epoch, highest = marker.get("epoch"), self._highest_epoch()
        if not self.pod_uid or marker.get("podUid") != self.pod_uid:
            raise Closed(BAD_MARKER, "marker_refused", "the marker is for another pod")
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < max(1, highest):
            raise Closed(BAD_MARKER, "marker_refused", "the marker's epoch is below %d" % max(1, highest))

    def _highest_epoch(self) -> int:
        text = read_small(os.path.join(self.root, ".epoch"), 32)
        if text is None:
            return 0
        if not text.strip().isdigit():
            raise Closed(BAD_SEED, "seed_failed", "the highest epoch cannot be read")
        return int(text)

    def _check_seed(self, marker: dict[str, Any]) -> None:
        text = read_small(os.path.join(self.root, "current", "seed.json"), SEED_LIMIT)
        try:
            seed = parse_object(text or "")
        except ValueError:
            raise Closed(BAD_SEED, "seed_failed", "no whole seed is in place") from None
        if not seed.get("sha256") or seed["sha256"] != marker.get("seedSha256"):
            raise Closed(BAD_MARKER, "marker_refused", "the marker is for another seed than the one in place")
        for area in AREAS:
            check_area(os.path.join(self.root, "current", area))

    def _release(self, marker: dict[str, Any]) -> None:
        status, answer = self._ask("POST /release", dump(marker))
        if status == 200 and answer.get("ok") is True:
            return
        code = answer.get("exit")
        self._note_state()
        raise Closed(
            code if code in (NO_PROOF, NO_PROVER, BAD_MARKER) else NO_PROVER,
            str(answer.get("code", "probe_unusable")),
            str(answer.get("message", "the prover answered %d" % status)),
        )

    def _confirm(self, marker: dict[str, Any]) -> None:
        """Ask once more, last of all: a prover that was killed or fell since the release keeps the gate closed."""
        _, state = self._ask("GET /state")
        self.state = state
        if state.get("startId") != marker.get("startId") or state.get("released") is not True:
            raise Closed(NO_PROVER, "gate_restarted", "the prover was restarted after the release")
        if state.get("standing") is not True or state.get("verdict") is not None:
            raise Closed(
                NO_PROOF, str(state.get("code") or "witness_unavailable"), "the proof fell right after the release"
            )

    def _note_state(self) -> None:
        try:
            self.state = self._ask("GET /state")[1]
        except Closed:
            self.state = None

    def _ask(self, request: str, body: str = "") -> tuple[int, dict[str, Any]]:
        """Ask the live prover.

        A prover that does not answer in three tries is away; a restarted one answers with another start id.
        """
        problem = ""
        for _ in range(PROVER_TRIES):
            try:
                return ask(self.config["healthPort"], request, body, PROVER_SECONDS)
            except (OSError, ValueError) as error:
                problem = str(error)
                time.sleep(POLL_SECONDS)
        raise Closed(NO_PROVER, "gate_restarted", "the prover does not answer: " + problem)


def read_small(path: str, limit: int) -> Optional[str]:
    """Return a small file's text, None when it is absent.

    Never follows a link; too long or not UTF-8 reads as damaged.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        return ""
    try:
        body = os.read(descriptor, limit + 1)
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return body.decode("utf-8", "replace") if len(body) <= limit else ""


def check_area(path: str) -> None:
    """Require a real directory with mode 2770: the kubelet would make a missing one as root. Raises Closed."""
    try:
        found = os.lstat(path)
        if stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) != AREA_MODE:
            os.chmod(path, AREA_MODE)
    except OSError as error:
        raise Closed(BAD_SEED, "seed_failed", "the seed's directories: %s" % error.strerror) from None
    if not stat.S_ISDIR(found.st_mode):
        raise Closed(BAD_SEED, "seed_failed", "the seed's directories are not all directories")


def leave_message(path: str, code: str, message: str, state: Optional[dict[str, Any]]) -> None:
    """Write the termination message; without the state when it would be too long.

    A message that cannot be written changes no code.
    """
    text = dump({"code": code, "message": message[:500], "state": state})
    if len(text) > MESSAGE_LIMIT:
        text = dump({"code": code, "message": message[:500], "state": None})
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        os.write(2, text.encode() + b"\n")


def main() -> None:
    """Run once; the exit code is the answer."""
    config = parse_object(sys.argv[1])
    log = config["terminationLog"]

    def stop(_number: int, _frame: object) -> None:
        leave_message(log, "stopped", "the gate was ended by a signal", None)
        os._exit(SIGNALLED)

    _signal.signal(_signal.SIGTERM, stop)
    _signal.signal(_signal.SIGINT, stop)
    gate = Gate(config, os.environ.get("PODGATE_POD_UID", ""))
    try:
        gate.run()
    except Closed as closed:
        leave_message(log, closed.code, closed.message, gate.state)
        os._exit(closed.status)
    except OSError as error:
        leave_message(log, "seed_failed", "the storage: %s" % error, None)
        os._exit(BAD_SEED)
    leave_message(log, "opened", "both keys were there", gate.state)
    os._exit(0)


if __name__ == "__main__":
    main()
