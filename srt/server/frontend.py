"""What every surface works with: one server without its HTTP."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compute_loop.models.files import ModelFiles
from srt.core.config import Config
from srt.core.errors import InvalidRequest, ModelNotFound
from srt.server.chat_template import ChatTemplate
from srt.server.engine_client import EngineClient
from srt.server.generation import Generation, Prompt
from srt.server.kv_events import KvEventPublisher
from srt.server.kv_replay import KvReplay, open_events
from srt.server.metrics import ServerMetrics
from srt.server.placement import Placement
from srt.server.requests import PromptBuilder
from srt.server.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class Frontend:
    """Thread: event loop. Made once at start, handed to the surfaces; its parts have their own state.

    Attributes:
        events, replay: with --kv-events and --kv-events-replay.
        model_name: what the model is called in answers.
        created: start of the server, in Unix seconds.
    """

    config: Config
    model_name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    client: EngineClient
    metrics: ServerMetrics
    prompts: PromptBuilder
    events: KvEventPublisher | None = None
    replay: KvReplay | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def build(cls, config: Config, files: ModelFiles) -> Frontend:
        """Loads the tokenizer. Call it in the event loop.

        Raises:
            ModelError: the tokenizer is broken or not supported.
            ConfigError: the file of --chat-template is, or an address of --kv-events cannot be used.
        """
        model_name = config.model.served_model_name or files.name
        tokenizer = Tokenizer.load(files)
        template = Path(config.model.chat_template) if config.model.chat_template else None
        metrics = ServerMetrics(model_name)
        chat_template = ChatTemplate.for_tokenizer(tokenizer, template)
        events, replay = open_events(config)
        client = EngineClient(metrics, config.schedule.max_unsent_tokens, events)
        return cls(
            config=config,
            model_name=model_name,
            tokenizer=tokenizer,
            chat_template=chat_template,
            client=client,
            metrics=metrics,
            prompts=PromptBuilder(client, tokenizer),
            events=events,
            replay=replay,
        )

    async def close(self) -> None:
        """Gives back the addresses of --kv-events, when there is no engine any more."""
        if self.replay is not None:
            await self.replay.close()
        if self.events is not None:
            self.events.close()

    def generation(self, prompts: Sequence[Prompt], placement: Placement) -> Generation:
        """All choices of one request, not sent yet.

        Raises:
            InvalidRequest: more choices than the engine takes in at once; trying again would not help.
        """
        schedule = self.config.schedule
        most = schedule.max_running_requests + schedule.max_queued_requests
        if len(prompts) > most:
            raise InvalidRequest(
                f"the request asks for {len(prompts)} answers at once (prompts times n), this server takes at most "
                f"{most}: --max-running-requests and --max-queued-requests together"
            )
        return Generation(
            self.client,
            self.tokenizer,
            prompts,
            placement=placement,
            log_request=self.config.server.log_requests,
        )

    def check_model(self, name: str | None) -> None:
        """Raises:
        ModelNotFound: a request names another model than the one served here.
        """
        if name is not None and name != self.model_name:
            raise ModelNotFound(f"model {name!r} is not served here, {self.model_name!r} is", field="model")
