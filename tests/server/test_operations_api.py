"""Flush, pause and continue over HTTP."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.api_desk import ApiDesk, with_api

LONG = {"text": "one two three", "sampling_params": {"ignore_eos": True, "max_new_tokens": 200}}


def test_a_pause_holds_and_a_continue_lets_go() -> None:
    async def scenario(desk: ApiDesk) -> None:
        desk.engine.held = True
        running = asyncio.create_task(desk.post("/generate", LONG))
        await desk.until(lambda: desk.engine.num_running == 1)
        paused = await desk.post("/pause_generation", {"mode": "in_place"})
        assert paused.json() == {"status": "paused", "mode": "in_place", "num_running": 1, "num_waiting": 0}
        assert (await desk.http.post("/continue_generation")).json() == {
            "status": "running",
            "was_paused": True,
        }
        assert (await running).status_code == 200
        assert (await desk.http.post("/pause_generation")).json()["mode"] == "abort", "a body is not needed"
        assert (await desk.post("/continue_generation", {"torch_empty_cache": True})).status_code == 200

    with_api(scenario)


def test_an_unknown_mode_is_refused_with_those_that_exist() -> None:
    async def scenario(desk: ApiDesk) -> None:
        refused = await desk.post("/pause_generation", {"mode": "sleep"})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["field"] == "mode"
        assert all(mode in error["message"] for mode in ("abort", "retract", "in_place", "sleep"))

    with_api(scenario)


@pytest.mark.parametrize("timeout", ["-1", "nan", "soon", "1e9", ""])
def test_a_flush_timeout_has_limits(timeout: str) -> None:
    async def scenario(desk: ApiDesk) -> None:
        refused = await desk.http.post("/flush_cache", params={"timeout": timeout})
        assert refused.status_code == 400
        assert refused.json()["error"]["field"] == "timeout"
        assert (await desk.http.post("/flush_cache", params={"timeot": "1"})).status_code == 400
        assert (await desk.http.post("/flush_cache", params={"timeout": "1.5"})).status_code == 200

    with_api(scenario)


def test_a_save_says_what_is_on_disk() -> None:
    async def scenario(desk: ApiDesk) -> None:
        saved = await desk.http.post("/save_cache")
        assert saved.json() == {"success": True, "saved_tokens": 64, "file_bytes": 4096}
        assert (await desk.post("/save_cache", {"path": "/etc"})).status_code == 400

    with_api(scenario)
