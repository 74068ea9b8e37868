"""The entry model: takes requests in on the server's thread; threads of its own do the rest."""

import json
import threading
import weakref
from functools import partial
from typing import Any

from canopy.config import Deployment
from canopy.costs.profile_file import load_profile
from canopy.engine.loop import Engine
from canopy.engine.output import Delta
from canopy.engine.stages import Stages
from canopy.errors import InvalidRequest
from canopy.frontend.inputs import InferenceInputs
from canopy.frontend.limits import engine_limits, model_limits
from canopy.frontend.profile_refiner import ProfileRefiner
from canopy.frontend.reply import Reply
from canopy.frontend.request_parser import RequestParser
from canopy.frontend.request_reader import RequestReader, failure_of
from canopy.frontend.response_stream import TritonSink
from canopy.frontend.response_thread import ResponseThread
from canopy.frontend.stage_restart import restart_stage
from canopy.frontend.text_operations import Operation, text_operations
from canopy.frontend.token_texts import TokenTexts
from canopy.frontend.triton_metrics import MetricsPublisher
from canopy.grammar.target import target_grammars
from canopy.model_store.folders import model_folder
from canopy.protocol.bls import BlsDrafter, BlsTreeBuilder, BlsVerifier, ping
from canopy.text.tokenizer import Tokenizer
from canopy.tree_builder.cached import CachedTreeBuilder


class EntryService:
    """Owns the engine, its thread, the metrics and the way out to clients."""

    def __init__(self, deployment: Deployment) -> None:
        folder = model_folder(deployment.target.model)
        tokenizer = Tokenizer(folder)
        limits = model_limits(folder, tokenizer)
        tree_builder = CachedTreeBuilder(
            BlsTreeBuilder(), deployment.tree, load_profile(deployment)
        )
        restart = partial(restart_stage, deployment.server)
        verifier = BlsVerifier()
        stages = Stages(BlsDrafter(), tree_builder, verifier, restart, ping)
        self._refiner = ProfileRefiner.of(deployment, verifier, limits.vocab_size)
        self._model_name = folder.name
        grammars = target_grammars(folder)
        self._parser = RequestParser(deployment, limits, tokenizer, grammars)
        self._token_texts = TokenTexts(tokenizer, grammars)
        self._engine = Engine(stages, engine_limits(deployment), tokenizer.decode)
        self._reader = RequestReader(self._parser, self._engine.reserve, self._engine.submit)
        self._text_operations = text_operations(self._parser)
        self._metrics = MetricsPublisher(self._engine.metrics, deployment.server.metrics_interval_s)
        self._response_thread = ResponseThread()
        self._sinks: weakref.WeakSet[TritonSink] = weakref.WeakSet()
        self._thread = threading.Thread(target=self._run, name="canopy-engine", daemon=True)
        self._thread.start()

    def handle(self, request: Any) -> None:
        """Accept or refuse one InferenceRequest; never raises, always ends the request."""
        sender = request.get_response_sender()
        try:
            self._accept(InferenceInputs(request), sender)
        except Exception as error:
            Reply(sender, self._response_thread).fail(failure_of(error))

    def _accept(self, inputs: InferenceInputs, sender: Any) -> None:
        control = inputs.text("control")
        if control is not None:
            self._control(control, TritonSink(sender, self._response_thread))
            return
        returned = inputs.returned_outputs()
        sink = TritonSink(
            sender, self._response_thread, inputs.request_id(), returned, self._token_texts
        )
        self._sinks.add(sink)
        self._reader.read(inputs.client_request(), sink)

    def close(self) -> None:
        """Stop the engine; what still runs is told so."""
        self._engine.stop()
        self._thread.join(timeout=10.0)
        self._reader.close()
        self._response_thread.close()

    def _run(self) -> None:
        self._engine.run(self._after_step)

    def _after_step(self) -> None:
        self._metrics.publish_when_due(not self._engine.has_work)
        if self._refiner is not None:
            self._refiner.after_step(lambda: self._engine.is_idle)

    def _control(self, text: bytes, sink: TritonSink) -> None:
        """Control messages. Their answers wait for no request, but those about texts for others.

        {"op": "health"}    engine.health.EngineHealth
        {"op": "drain"}     accept nothing more; asked again, how many requests are left
        {"op": "stop"}      end what is left, too
        {"op": "cancel", "request_id": ...}
        {"op": "describe"}  the model, its limits and its defaults
        and those of `text_operations`.
        """
        try:
            message = json.loads(text)
            operation = message["op"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidRequest('control must be JSON such as {"op": "drain"}') from error
        operations: dict[str, Operation] = {
            "health": lambda _: self._health(),
            "drain": lambda _: self._drain(),
            "stop": lambda _: self._stop(),
            "describe": lambda _: {"model": self._model_name} | self._parser.describe(),
            "cancel": lambda message: {"cancelled": self._cancel(message)},
        }
        known = operations | self._text_operations
        if not isinstance(operation, str) or operation not in known:
            names = ", ".join(known)
            raise InvalidRequest(f"unknown control operation {operation!r}: known are {names}")

        def answer() -> Delta:
            return Delta(json.dumps(known[operation](message)), 0, finish_reason="stop")

        if operation in operations:
            sink.send(answer())
        else:
            self._reader.answer(answer, len(text), sink)

    def _health(self) -> dict[str, Any]:
        return self._engine.health(self._thread.is_alive()).as_dict()

    def _drain(self) -> dict[str, Any]:
        self._engine.drain()
        return {"draining": True, "num_left": self._health()["num_left"]}

    def _stop(self) -> dict[str, Any]:
        self._engine.stop()
        return {"stopping": True}

    def _cancel(self, message: dict[str, Any]) -> int:
        request_id = message.get("request_id")
        if not isinstance(request_id, str) or not request_id:
            raise InvalidRequest("cancel needs the request_id that the request was sent with")
        found = [sink for sink in list(self._sinks) if sink.request_id == request_id]
        for sink in found:
            sink.cancel()
        return len(found)
