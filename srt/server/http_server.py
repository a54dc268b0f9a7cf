"""The HTTP application: routes of all families, and what an error looks like on each."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from srt.core.errors import TwinloopError
from srt.server.admin_api import admin_routes
from srt.server.frontend import Frontend
from srt.server.http_errors import on_http_error, on_twinloop_error, on_unexpected_error
from srt.server.native_api import native_routes
from srt.server.openai_api import openai_routes
from srt.server.operations_api import operation_routes
from srt.server.token_api import token_routes
from srt.server.tree_api import tree_routes

ROUTES = (native_routes, openai_routes, token_routes, admin_routes, operation_routes, tree_routes)
"""Each makes the routes of one family for a server. A new family is a file and a line here."""


def create_app(frontend: Frontend) -> FastAPI:
    """The application that serves one engine."""
    app = FastAPI(title="Twinloop", redirect_slashes=False)
    for routes in ROUTES:
        app.include_router(routes(frontend))
    app.add_exception_handler(TwinloopError, on_twinloop_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_unexpected_error)
    return app
