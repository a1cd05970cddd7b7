"""The Arrow Flight side: batches of raw values in, batches of predictions out, over one stream.

client = pyarrow.flight.connect("grpc://127.0.0.1:8081")
writer, reader = client.do_exchange(pyarrow.flight.FlightDescriptor.for_path("ctr"))
with writer:
    writer.begin(table.schema)
    for batch in table.to_batches(max_chunksize=1024):
        writer.write_batch(batch)
        answer = reader.read_chunk()
        answer.data           # one column per prediction
        answer.app_metadata   # JSON: generation, epoch, global_step, age_secs
    writer.done_writing()
"""

import concurrent.futures
import dataclasses
import json
import time

import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.service.security import token_refusal
from ctr_trainer.scoring.examples import Examples
from ctr_trainer.scoring.refusals import NotReady, NotThere, QueueFull, RequestRefused, TookTooLong

_ERRORS = {
    NotThere: pa.ArrowKeyError,
    NotReady: flight.FlightUnavailableError,
    QueueFull: flight.FlightUnavailableError,
    TookTooLong: flight.FlightTimedOutError,
}


class FlightScorer(flight.FlightServerBase):
    """Answers each batch of `do_exchange` with its predictions, in order.

    Args:
      host, port: to listen on; port 0 picks one.
      live: `LiveModel`.
      batcher: `Batcher`.
      metrics: `ScoreMetrics`.
      limits: `ScoreLimits`.
      security: `ServerSecurity`.

    Raises:
      OSError, pyarrow.ArrowException: the port is taken.
    """

    def __init__(self, host, port, live, batcher, metrics, limits, security):
        self._live, self._batcher, self._metrics, self._limits = live, batcher, metrics, limits
        super().__init__(
            security.location(host, port), middleware={"token": _Gate(security.token)}, **security.server_options()
        )

    def do_exchange(self, context, descriptor, reader, writer):
        name = descriptor.path[0].decode(errors="replace") if descriptor.path else ""
        begun = False
        for chunk in reader:
            if chunk.data is None:
                continue
            began, status = time.perf_counter(), 500
            try:
                scored = self._score(name, chunk.data)
                status = 200
            except RequestRefused as error:
                status = error.status
                raise _ERRORS.get(type(error), pa.ArrowInvalid)(str(error)) from None
            finally:
                self._metrics.note_request("flight", status, time.perf_counter() - began)
            batch = pa.record_batch({each: _array(values) for each, values in sorted(scored.outputs.items())})
            if not begun:
                writer.begin(batch.schema)
                begun = True
            writer.write_with_metadata(batch, json.dumps(dataclasses.asdict(scored.freshness)).encode())

    def _score(self, name, batch):
        examples = Examples.of_arrow(self._live.named(name).inputs, batch, self._limits)
        try:
            return self._batcher.submit(examples).result(self._limits.timeout_secs)
        except concurrent.futures.TimeoutError:
            raise TookTooLong(f"not scored within {self._limits.timeout_secs:g} s (--timeout_secs)") from None


class _Gate(flight.ServerMiddlewareFactory):
    """Refuses calls without the token."""

    def __init__(self, token):
        super().__init__()
        self._token = token

    def start_call(self, info, headers):
        refusal = token_refusal((headers.get("authorization") or [""])[0], self._token)
        if refusal:
            raise flight.FlightUnauthenticatedError(refusal)


def _array(values):
    return pa.array(values) if values.ndim == 1 else pa.array(values.tolist())
