"""The one family of errors that a client or an operator can see.

Every error has a stable ``label`` (for machines), an HTTP ``status`` and says whether the same request may be
``retryable``. Errors cross processes as `ErrorInfo`, which is plain data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as data: what a message carries and what an HTTP body is made from.

    `field` names the request field at fault, where there is one.
    """

    label: str
    status: int
    message: str
    retryable: bool = False
    field: str | None = None

    def to_exception(self) -> TwinloopError:
        """The exception of the family that has this label (`EngineFailure` for an unknown one)."""
        kind = ERRORS.get(self.label, EngineFailure)
        return kind(self.message, field=self.field)


class TwinloopError(Exception):
    """Base of the family. Raise a subclass, never this."""

    label: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def info(self) -> ErrorInfo:
        return ErrorInfo(self.label, self.status, self.message, self.retryable, self.field)


class InvalidRequest(TwinloopError):
    """The request itself is wrong: it names the field, the value and the limit. Never retry unchanged."""

    label = "invalid_request"
    status = 400


class ModelNotFound(TwinloopError):
    """A request names a model that this server does not serve."""

    label = "model_not_found"
    status = 404


class QueueFull(TwinloopError):
    """The bounded waiting queue is full; the same request may succeed later."""

    label = "queue_full"
    status = 503
    retryable = True


class Unavailable(TwinloopError):
    """The server is starting, draining or restarting its engine."""

    label = "unavailable"
    status = 503
    retryable = True


class Busy(TwinloopError):
    """The operation needs an idle engine (a flush, say) and the engine has work."""

    label = "busy"
    status = 409
    retryable = True


class Aborted(TwinloopError):
    """The request was aborted by an operator, a lost client or a limit."""

    label = "aborted"
    status = 499


class TimedOut(TwinloopError):
    """The request waited or ran longer than the server allows."""

    label = "timeout"
    status = 503
    retryable = True


class StepFailure(TwinloopError):
    """A forward step failed for this request alone, twice."""

    label = "step_failure"
    status = 500


class EngineFailure(TwinloopError):
    """The engine process or one of its threads died; requests in flight are lost, new ones may succeed."""

    label = "engine_failure"
    status = 503
    retryable = True


class CacheFileError(TwinloopError):
    """The prefix cache could not be saved: names the file and the reason. The one saved before is still there."""

    label = "cache_file"
    status = 500
    retryable = True


class ModelError(TwinloopError):
    """A model file is missing, broken or unsupported: names the file and the tensor or key."""

    label = "model_error"
    status = 500


class ConfigError(TwinloopError):
    """A start-up option is wrong or contradicts another: names the option and what is allowed."""

    label = "config_error"
    status = 500


ERRORS: dict[str, type[TwinloopError]] = {
    kind.label: kind
    for kind in (
        InvalidRequest,
        ModelNotFound,
        QueueFull,
        Unavailable,
        Busy,
        Aborted,
        TimedOut,
        StepFailure,
        EngineFailure,
        CacheFileError,
        ModelError,
        ConfigError,
    )
}
"""label -> class, closed: a new error is a class above and a line here."""
