"""What can go wrong between us and a cluster.

::

    ClusterError                transient?
    ├── NotFound                no     the object, or its namespace, is not there
    ├── AlreadyExists           no     a create found an object of that name
    ├── Conflict                yes    another write came first; nothing was done (on create: a quota's update race)
    ├── Refused                 no     403, 422, admission; ``quota`` when a ResourceQuota is exhausted
    ├── Throttled               yes    429; ``retry_after`` seconds when the server said so
    ├── Gone                    no     410: the watch's resourceVersion is too old, list again
    ├── Unreachable             yes    no answer, a cut connection, 5xx; the request may have been carried out
    ├── ExecFailed              no     an exec did not run, or its stream broke
    └── Misconfigured           no     no usable kubeconfig, context or in-cluster credentials; nothing was asked

The text says operation, status and reason only: never bodies, headers or identities. The raw exception is the cause and
goes to the log.
"""

from typing import ClassVar


class ClusterError(Exception):
    """Base of everything the cluster port raises. Nothing is implied about whether the request was carried out."""

    transient: ClassVar[bool] = False

    def __init__(self, operation: str, *, status: int | None = None, reason: str | None = None) -> None:
        self.operation = operation
        self.status = status
        self.reason = reason
        super().__init__(" ".join(str(part) for part in (operation, status, reason) if part is not None))


class NotFound(ClusterError):
    """The object, its namespace, or the pod of an exec or log is not there."""


class AlreadyExists(ClusterError):
    """A create found an object of that name; whose it is has to be looked at."""


class Conflict(ClusterError):
    """Another write came first, or a precondition (uid, resourceVersion) does not hold. Nothing was done."""

    transient = True


class Refused(ClusterError):
    """The server understood and said no: access, admission, validation, quota. Nothing was done."""

    def __init__(
        self,
        operation: str,
        *,
        status: int | None = None,
        reason: str | None = None,
        message: str = "",
        quota: bool = False,
    ) -> None:
        super().__init__(operation, status=status, reason=reason)
        self.message = message
        """The server's own sentence for admission and validation refusals, cut at 500 characters; shown to
        operators."""
        self.quota = quota


class Throttled(ClusterError):
    """429. Nothing was done."""

    transient = True

    def __init__(self, operation: str, *, retry_after: float | None = None) -> None:
        super().__init__(operation, status=429, reason="TooManyRequests")
        self.retry_after = retry_after


class Gone(ClusterError):
    """410: the resourceVersion a watch was to start from is no longer there."""


class Unreachable(ClusterError):
    """No answer within the time given, a cut connection, or 5xx.

    ``sent`` is False only when the request certainly reached no server (the connection could not be made); otherwise
    it may have been carried out.
    """

    transient = True

    def __init__(
        self, operation: str, *, status: int | None = None, reason: str | None = None, sent: bool = True
    ) -> None:
        super().__init__(operation, status=status, reason=reason)
        self.sent = sent


class Misconfigured(ClusterError):
    """No cluster could be chosen: ``reason`` says what is missing in kubeconfig, context or in-cluster credentials."""


class ExecFailed(ClusterError):
    """An exec did not start, or its stream broke.

    ``started`` is False when no byte of ours can have reached a process.
    """

    def __init__(
        self,
        operation: str,
        *,
        status: int | None = None,
        reason: str | None = None,
        started: bool,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(operation, status=status, reason=reason)
        self.started = started
        self.exit_code = exit_code
