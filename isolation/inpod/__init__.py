"""The programs that run inside a run's pod, and how they speak with each other and with the launcher.

Each program is standard library only, Python 3.9 or later, and travels as text in the pod spec or in the argument
vector of an exec: ``python3 -I -S -c <source> <config>`` where ``<config>`` is one canonical JSON object. Nothing here
is imported by the launcher at run time; the text is read with :func:`source`. What programs share are parts (``wire
loop probe standing serve exposure``): a program imports them like any module, and :func:`source` puts their text in the
import's place. Prover and canary so make the very same rounds.

Environment, from the downward API: ``PODGATE_POD_UID`` metadata.uid (prover, gate), ``PODGATE_POD_IPS`` status.podIPs
and ``PODGATE_HOST_IPS`` status.hostIPs (prover, canary).

Directory layout on the run's storage volume, mounted at ``/run/podgate`` in gate and keeper::

    /run/podgate/.epoch            highest epoch seen by a receiver (decimal), guarded by flock on .lock
    /run/podgate/seed-<epoch>/     where a receiver of that epoch extracts
    /run/podgate/current/          what was put in place by rename: workspace/ input/ output/ (2770) and seed.json
    /run/podgate/current/seed.json {"epoch": 1, "sha256": "<64 hex>", "bytes": N, "entries": N}
    /run/podgate/.marker           the launcher's key

The worker mounts ``current/workspace`` at /workspace, ``current/input`` read-only at /run/job/input and
``current/output`` at /run/job/output (subPath). A workspace of a run without a seed is empty; a receiver always runs,
also for an empty seed.

prover (container ``prover``, its own uid; config keys below are ``ProverConfig`` in isolation/objects/programs.py)
    PID 1 is a supervisor of few lines which holds the health port (SO_REUSEPORT, never listening) and restarts its
    child. JSON lines on stdout: {"prover": "started", "startId", …}, one {"round", "at", "family", "verdict", …} a
    round (a burst of 400, then one in 5 s; ``unsaid`` counts the rest), {"released": true, "at"}, {"verdict", "at",
    "detail"} when the run is lost. HTTP on the pod's health port, one request per connection:

    GET /healthz   200 ``standing`` or ``waiting`` while nothing is lost, 503 with the verdict for good afterwards
    GET /state     200, one JSON object: {"startId": 32 hex, "verdict": null | "open" | "intercepted" | "leak" | "blind"
                   | "unusable" | "timeout", "standing": bool, "standingSince": seconds | null, "everStood": bool,
                   "rounds": N, "provenRounds": N, "by": "drop" | "refusal" | null, "backends": {"4": "10.1.2.3", "6":
                   "fd00::3"}, "last": null | {"verdict": "proven" | "open" | "intercepted" | "leak" | "unserved" |
                   "unavailable" | "unusable", "family": "4" | "6", "detail": "…", "age": seconds}, "lastBad": likewise
                   for the last round that was not proven, "code": null while standing, else the proof's own code with
                   ``_before_release`` where one had stood, "families": {"4": {"standing": bool, "streak": N}},
                   "missingFamilies": ["6", …] (the witness has no address there: ``witness_family_missing``),
                   "startedAt": s, "firstRoundAt": s, "firstGoodAt": s | null (when the first proven round looked, of
                   the family that came last), "openUntil": s | null, "released": bool, "releasedAt": s | null,
                   "blindSince": s | null (after the release only), "nodeExposure": ["kubelet 10.0.0.1:10250",
                   "apiserver 10.96.0.1:443", …], "leaks": ["name", …], "now": s}. A family's rounds are counted one by
                   one. All times are Unix seconds of the node's clock with fractions.
    POST /release  body = the marker. 200 {"ok": true} only when the start id is this one, the pod uid is this pod's,
                   the proof stands, the last proven round of each family ended less than 2 s ago and no other verdict
                   came since, and the release could be remembered. Otherwise 409 {"ok": false, "exit": 40 | 41 | 42,
                   "code": …, "message": …}. The first success latches the moment of release;
                   repeating it changes nothing. The first /healthz after it (the worker's own probe) begins the
                   worker's time: timeout + 15 s later /healthz is 503 ``timeout``. Before the release nothing is ever
                   lost: /healthz is 200.

gate (init container ``gate``, worker's uid)
    Deletes any marker at its start, makes the directories, waits for the marker (polling every 50 ms) until its own
    bound. On a marker: takes .lock (no receiver may replace the seed any more), checks pod uid, epoch (not below the
    highest seen), seed digest against current/seed.json, then POST /release to the live prover, asks /state once more
    (same start id, released, standing), and exits 0 or with its code: 40 no standing proof, 41 prover unknown,
    restarted or away, 42 marker refused, 43 signal, 44 bound over, 45 seed missing or damaged. The first marker
    decides. terminationMessage: {"code": "opened" | …, "message": …, "state": {…prover state…} | null}, below 4,096
    bytes.

follow (exec into ``gate``; stdin carries the marker)
    Prints the prover's state as one JSON line whenever a round more has ended (at most every 100 ms), {"waiting": "…"}
    while the prover cannot be reached (every second). One line of JSON on stdin is the marker: it is written to
    ``.marker`` by rename, answered with {"marker": "written"} or {"marker": "refused", "message": …}. Ends when stdin
    ends, when its reader is gone, or with its container. State lines are dropped while nobody reads.

receive (exec into ``gate``; stdin carries the archive)
    argv config {"epoch": N, "maxBytes": N (content), "maxEntries": N, "root": "/run/podgate"}. stdin: 8-byte big-endian
    length of the archive, then the archive (tar, POSIX pax; ``workspace/…`` and ``input/…``) in any frames, then 32
    bytes SHA-256 of it. Acknowledges with {"received": N} after every 4 MiB, and at the latest 2 s after the last line
    while bytes come. Ends with one line {"ok": true, "bytes": N, "sha256": "…", "entries": N} (archive bytes, and all
    entries), or {"ok": false, "code": "seed_failed" | "launch_superseded", "message": "…", "cut": true when the
    stream broke on its way, so that another try may succeed}; after an error it drains stdin, by count. A receiver of
    the same or a higher epoch ends others (flock on .receiver, which holds the pid; SIGTERM, then SIGKILL); one of a
    lower epoch than .epoch is refused at its start and again before the rename. What is not put in place stays in
    seed-<epoch> until the next receiver clears it. Nothing is synced: the seed lives as
    long as its node's memory does, and a sync would wait for every other pod's writes.

send (exec into ``keeper``)
    argv config {"root": "/run/podgate/current", "what": "workspace" | "result", "maxBytes": N, and for workspace
    "maxEntries": N, "excludeNames": [directories and links of these names, at any depth], "excludePaths": [relative
    paths]}. stdout for workspace: one JSON line {"ok": true}, then frames of 4-byte big-endian length + bytes (tar,
    paths relative to the workspace; at most 256 KiB), a frame of length 0, then one JSON line {"ok": true, "bytes": N,
    "sha256": "…", "entries": N, "excluded": [at most 1,000 relative paths of dropped directories], "dropped": how many
    there were} or {"ok": false, "code": "collect_failed" | "extract_*", "message": "…"}. For result: one JSON line
    {"ok": true, "present": bool, "bytes": N, "sha256": "…", "content": "<base64>"} (sha256 and content absent when
    larger than maxBytes) or {"ok": false, "code": "result_invalid" | "collect_failed", "message": "…"}. It owns the
    worker's files, so modes without a read bit are opened up first. It runs with stdin attached and ends when stdin
    ends.

witness (its own Deployment)
    control port and deny port (TCP and UDP); see its own docstring. canary: the preflight's probe; JSON lines on
    stdout, the last one has "final": true and everything to decide from; see its own docstring.
"""

import re
from importlib.resources import files
from typing import Literal

ProgramName = Literal["prover", "gate", "follow", "receive", "send", "keeper", "witness", "canary"]


_PART = re.compile(r"^from isolation\.inpod\.(\w+) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)
_FUTURE = "from __future__ import annotations\n"


def source(program: ProgramName) -> str:
    """Text of an in-pod program: its file as committed, with the parts that it imports put before it, each once.

    The text is part of the attested pod, so it must not depend on the Python that renders it: it is never minified.
    """
    texts: dict[str, str] = {}
    _collect(program, texts)
    text = "\n\n".join(texts.values())
    return _FUTURE + text.replace(_FUTURE, "") if _FUTURE in text else text


def _collect(module: str, texts: dict[str, str]) -> None:
    if module in texts:
        return
    own = files(__package__).joinpath(f"{module}.py").read_text(encoding="utf-8")
    for part in _PART.findall(own):
        _collect(part, texts)
    texts[module] = _PART.sub("", own)
