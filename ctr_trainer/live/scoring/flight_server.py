"""The server for Arrow Flight. It answers each batch of raw values in a stream with a batch of predictions.

docs/serving.md has a client. The app_metadata of an answer is the JSON of `Freshness.to_dict`. To rank candidates for
one context, a batch has the columns of the candidates, and the app_metadata `{"context": {"user": "u1"}}`.

The server implements only the call DoExchange of Flight, with grpcio. pyarrow's own server accepts messages of any size
and decompresses them before they can be checked, does not limit connections, and sends tracebacks to clients.
"""

import concurrent.futures
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from ctr_trainer.embedding.service.security import ServerSecurity, split_address, token_refusal
from ctr_trainer.live.arrow_messages import ArrowMessages, BadArrow, TooMuchArrow
from ctr_trainer.live.scoring import request_forms
from ctr_trainer.live.scoring.batcher import Batcher, not_in_time
from ctr_trainer.live.scoring.examples import LIMIT
from ctr_trainer.live.scoring.live_model import LiveModel
from ctr_trainer.live.scoring.metrics import ScoreMetrics
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.live.scoring.served_model import Scored
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_SERVICE = "arrow.flight.protocol.FlightService"
_MOST_STREAMS, _MOST_CONNECTIONS = 64, 256
# Limit of a message without its body: the batch's metadata and the stream's descriptor.
_MOST_METADATA_BYTES = 1 << 20
_STATUS = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.UNAVAILABLE,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


# Flight.proto's FlightData, with the fields that this server reads.
_PROTO = """
name: "ctr_trainer/flight.proto" package: "ctr_trainer" syntax: "proto3"
message_type {
  name: "Descriptor"
  field { name: "path" number: 3 type: TYPE_STRING label: LABEL_REPEATED }
}
message_type {
  name: "Data"
  field { name: "descriptor" number: 1 type: TYPE_MESSAGE type_name: ".ctr_trainer.Descriptor" label: LABEL_OPTIONAL }
  field { name: "header" number: 2 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "app_metadata" number: 3 type: TYPE_BYTES label: LABEL_OPTIONAL }
  field { name: "body" number: 1000 type: TYPE_BYTES label: LABEL_OPTIONAL }
}
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
_FlightData: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("ctr_trainer.Data"))


class FlightScorer:
    """Answers each batch of `do_exchange` with its predictions, in order. Raises UserError if the port is taken."""

    def __init__(
        self, flags: ScoreFlags, live: LiveModel, batcher: Batcher, metrics: ScoreMetrics, security: ServerSecurity
    ) -> None:
        self._live, self._batcher, self._metrics, self._limits = live, batcher, metrics, flags.limits
        self._token = security.token
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(_MOST_STREAMS, "flight"),
            maximum_concurrent_rpcs=_MOST_STREAMS,  # Beyond it, grpc answers RESOURCE_EXHAUSTED.
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", flags.limits.max_body_bytes + _MOST_METADATA_BYTES),
                ("grpc.max_metadata_size", 16 << 10),
                ("grpc.absolute_max_metadata_size", 16 << 10),
                ("grpc.max_concurrent_streams", _MOST_STREAMS),
                ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS),
                ("grpc.server_handshake_timeout_ms", 10_000),
                ("grpc.max_connection_idle_ms", 300_000),
                ("grpc.keepalive_time_ms", 60_000),  # Ends the streams of clients that no longer exist.
            ],
        )
        exchange = grpc.stream_stream_rpc_method_handler(
            self._exchange, _FlightData.FromString, _FlightData.SerializeToString
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, {"DoExchange": exchange}),)
        )
        address = f"{split_address(flags.bind)[0]}:{flags.flight_port}"
        try:
            if security.cert:
                credentials = grpc.ssl_server_credentials(
                    [(security.key, security.cert)], security.client_ca, security.client_ca is not None
                )
                self.port = self._server.add_secure_port(address, credentials)
            else:
                self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise UserError(
                f"flight_port={flags.flight_port}: {error}; if the port is taken, name a free one"
            ) from None
        self._server.start()

    def stop(self, seconds: float) -> None:
        """Accepts no more streams, and aborts the streams that have not ended after this time."""
        ended = self._server.stop(seconds)
        if not ended.wait(max(seconds - 0.1, 0)):
            _log.warning("streams of Arrow Flight that did not end within %g s are aborted", seconds)
        ended.wait(seconds + 10)

    def _exchange(self, messages: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            headers = dict(context.invocation_metadata())
            if refusal := token_refusal(str(headers.get("authorization", "")), self._token):
                raise RequestRefused(refusal, status=401)
            yield from self._answers(messages)
        except RequestRefused as error:
            context.abort(_STATUS.get(error.status, grpc.StatusCode.INVALID_ARGUMENT), str(error))
        except grpc.RpcError:
            return  # The client has disconnected.

    def _answers(self, messages: Iterator[Any]) -> Iterator[Any]:
        name, has_begun = None, False
        arrow = ArrowMessages(self._limits.max_body_bytes, self._limits.max_values, LIMIT)
        for message in messages:
            if name is None:
                name = message.descriptor.path[0] if message.descriptor.path else ""
            if not message.header:
                continue
            began, status = time.perf_counter(), 500
            try:
                self._batcher.refuse_late()
                try:
                    batch = arrow.read(message.header, message.body)
                except BadArrow as error:
                    raise RequestRefused(str(error), status=413 if isinstance(error, TooMuchArrow) else 400) from None
                if batch is None:
                    status = 0
                    continue
                scored = self._score(name, batch, message.app_metadata)
                status = 200
            except RequestRefused as error:
                status = error.status
                raise
            finally:
                if status:
                    self._metrics.note_request("flight", status, time.perf_counter() - began)
            outputs = {name: v if v.ndim == 1 else v.tolist() for name, v in sorted(scored.outputs.items())}
            answer = pa.record_batch({name: pa.array(values) for name, values in outputs.items()})
            if not has_begun:
                yield _message(answer.schema.serialize())
                has_begun = True
            yield _message(answer.serialize(), json.dumps(scored.freshness.to_dict()).encode())

    def _score(self, name: str, batch: pa.RecordBatch, metadata: bytes) -> Scored:
        examples = request_forms.of_flight(self._live.named(name).tower.inputs, batch, metadata, self._limits)
        with self._batcher.answering(examples) as future:
            try:
                return future.result(self._limits.timeout_secs)
            except concurrent.futures.TimeoutError:
                future.cancel()
                raise not_in_time(self._limits) from None


def _message(serialized: pa.Buffer, app_metadata: bytes = b"") -> Any:
    message = pa.ipc.read_message(serialized)
    body = message.body.to_pybytes() if message.body is not None else b""
    return _FlightData(header=message.metadata.to_pybytes(), body=body, app_metadata=app_metadata)
