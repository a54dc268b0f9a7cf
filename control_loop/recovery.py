"""After a failed step: rows that were in it are tried again alone, so that only the guilty one fails."""

from __future__ import annotations

from control_loop.req import Phase, Req
from control_loop.slots import SlotTable

PROBATION_TOKENS = 2
"""Tokens that a suspect must produce alone: the step that failed, and the one launched behind it."""


class Recovery:
    """Thread: control. Suspects in the order of arrival; one at a time is on probation.

    Being alone needs no special command: the rows of the other cleared suspects have no credit, so compute parks them
    until the last suspect is cleared.
    """

    def __init__(self) -> None:
        self._suspects: list[Req] = []

    @property
    def active(self) -> bool:
        return bool(self._suspects)

    def is_guilty(self, req: Req, num_suspects: int) -> bool:
        """Counts a failed step for a suspect; True when it failed alone, and not for the first time."""
        req.failures += 1
        return num_suspects == 1 and req.failures > 1

    def suspect(self, req: Req) -> None:
        if req not in self._suspects:
            self._suspects.append(req)
            self._suspects.sort(key=lambda r: r.arrival)

    def candidate(self, slots: SlotTable) -> Req | None:
        """The suspect to try now, after clearing those that have passed.

        Who has passed alone was not the cause: its count begins anew, or a long request would die of the company that
        it keeps. A trial that is passed leaves two more tokens, so that even steps that always fail in company end.
        """
        passed = [req for req in self._suspects if self._has_passed(req, slots)]
        for req in passed:
            req.failures = 0
            self._suspects.remove(req)
        return self._suspects[0] if self._suspects else None

    @staticmethod
    def _has_passed(req: Req, slots: SlotTable) -> bool:
        if req.phase is Phase.GONE or req.finish is not None:
            return True
        produced = slots.num_tokens[req.slot] - slots.prefill_len[req.slot]
        return req.phase is Phase.DECODING and bool(produced >= PROBATION_TOKENS)

    def __repr__(self) -> str:
        return f"Recovery({len(self._suspects)} suspects)"
