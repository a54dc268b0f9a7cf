"""Standing still on demand: so that weights can be changed, a cache saved, or a machine looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from control_loop.parts import LoopParts
from control_loop.req import Phase
from srt.core.messages import ContinueReply, ContinueReq, PauseMode, PauseReply, PauseReq
from srt.core.step_messages import Fence, Resume


class Pause:
    """Thread: control. While `mode` is set, no request is admitted, no chunk and no page is handed out.

    In place, compute holds all rows with their memory; the other modes take every row out of it first. A pause is
    answered when it has been reached: no step runs, and in the other modes no request holds a slot.

    Attributes:
        mode: of the pause that was asked for last; None: the engine goes on.
    """

    def __init__(self, parts: LoopParts) -> None:
        self._parts = parts
        self._asked: list[tuple[int, int | None]] = []
        self._held = False
        self.mode: PauseMode | None = None

    @property
    def is_owed(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._asked)

    @property
    def holds_rows(self) -> bool:
        """Rows stand still with their memory: their silence is no fault."""
        return self._held

    def ask(self, message: PauseReq) -> None:
        self.mode = message.mode
        self._asked.append((message.key, BEGIN[message.mode](self)))
        self.advance()

    def resume(self, message: ContinueReq) -> None:
        was_paused, self.mode = self.mode is not None, None
        if self._held:
            self._held = False
            self._parts.commands.send(Resume)
        self.advance()
        self._parts.port.send(ContinueReply(message.key, was_paused))

    def advance(self) -> bool:
        """Answers who waits for rows to leave; True when somebody was answered."""
        reached = self._parts.is_quiet or self.mode is None
        return self._answer(lambda fence: fence is None and reached)

    def on_fence(self, fence: int) -> None:
        """Compute has drained, and holds."""
        self._answer(lambda own: own == fence)

    def hold_rows(self) -> int:
        """Stops compute where it is; the fence that says when it stands."""
        self._held = True
        return self._parts.commands.send(lambda seq, epoch: Fence(seq, epoch, hold=True))

    def retract_rows(self) -> None:
        """Every row gives its memory back; its request waits again, in front."""
        for req in self._parts.slots.reqs():
            if req.phase is not Phase.LEAVING:
                self._parts.outputs.retract(req)

    def abort_all(self) -> None:
        for req in [*self._parts.waiting, *self._parts.slots.reqs()]:
            if req.finish is None:
                self._parts.outputs.abort(req, None)

    def _answer(self, is_reached: Callable[[int | None], bool]) -> bool:
        reached = [key for key, fence in self._asked if is_reached(fence)]
        self._asked = [asked for asked in self._asked if asked[0] not in reached]
        for key in reached:
            self._parts.port.send(PauseReply(key, self._parts.slots.num_in_use, len(self._parts.waiting)))
        return bool(reached)

    def __repr__(self) -> str:
        return f"Pause({self.mode or 'no'}, {len(self._asked)} asked)"


BEGIN: Final[Mapping[PauseMode, Callable[[Pause], int | None]]] = MappingProxyType(
    {"abort": Pause.abort_all, "retract": Pause.retract_rows, "in_place": Pause.hold_rows}
)
"""mode -> how a pause of that mode begins; it returns the fence that ends the wait, None when empty slots do."""
