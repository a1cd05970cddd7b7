"""Chrome traces of a training thread's phases and of a traced step's operations."""

import json

from ctr_trainer.measuring.clock import since_1970
from ctr_trainer.measuring.phases import PHASES

_HOST = 1_000_000  # Process number in the trace, above the numbers that TensorFlow gives to its devices.


def chrome_trace(spans, step_stats):
    """Makes a Chrome trace (Trace Event Format, JSON Object Format), with a row per phase and rows for each device.

    Args:
      spans: list of (phase, began, ended), as `Clock.spans`.
      step_stats: `step_stats` of a step's `tf.compat.v1.RunMetadata`; None for no operations.

    Returns:
      dict that JSON can hold.
    """
    from tensorflow.python.client import timeline

    events = []
    if step_stats is not None:
        traced = timeline.Timeline(step_stats).generate_chrome_trace_format(show_memory=False)
        events += json.loads(traced)["traceEvents"]
    events.append(_named("process_name", "training thread"))
    numbers = {phase: number for number, phase in enumerate(PHASES)}
    events += [_named("thread_name", phase, number) for phase, number in numbers.items()]
    offset = since_1970(0.0)
    for phase, began, ended in spans:
        when = {"ts": round((began + offset) * 1e6), "dur": round((ended - began) * 1e6)}
        events.append({"ph": "X", "cat": "Phase", "name": phase, "pid": _HOST, "tid": numbers[phase], **when})
    return {"traceEvents": events}


def _named(what, name, thread=0):
    return {"ph": "M", "name": what, "pid": _HOST, "tid": thread, "args": {"name": name}}
