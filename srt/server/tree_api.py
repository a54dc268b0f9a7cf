"""Routes that show the radix tree: GET /radix_tree for programs, GET /radix_tree.html for people."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from importlib.resources import files

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, StrictUndefined

from srt.server.admin_api import ask_stats
from srt.server.frontend import Frontend
from srt.server.http_body import validate_body
from srt.server.json_response import json_response
from srt.server.placement import namespace_label
from srt.server.protocol import TreeQuery
from srt.server.tree_rows import depth_first, one_line, plural
from srt.server.tree_view import show_tree

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{}'; connect-src 'self'"
"""What the page may load: nothing, except itself anew."""


def tree_routes(frontend: Frontend) -> APIRouter:
    router = APIRouter()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(one_line=one_line, plural=plural, label=namespace_label)
    page = environment.from_string(files("srt.server").joinpath("radix_tree.html").read_text("utf-8"))

    @router.get("/radix_tree")
    async def radix_tree(request: Request) -> Response:
        query = validate_body(dict(request.query_params), TreeQuery)
        return json_response(asdict(await show_tree(frontend, query)))

    @router.get("/radix_tree.html")
    async def radix_tree_page(request: Request) -> Response:
        query = validate_body(dict(request.query_params), TreeQuery)
        tree = await show_tree(frontend, query)
        stats = await ask_stats(frontend)
        nonce = secrets.token_urlsafe(16)
        html = page.render(
            model=frontend.model_name,
            query=query,
            tree=tree,
            rows=list(depth_first(tree.nodes)),
            stats=stats,
            nonce=nonce,
        )
        headers = {"content-security-policy": POLICY.format(nonce), "cache-control": "no-store"}
        return Response(html, media_type="text/html", headers=headers)

    return router
