"""Names the ranks that the others wait for."""

import time

from ctr_trainer.measuring.phases import PHASES
from ctr_trainer.ranks import heartbeat

_ALONE = {name for name, phase in PHASES.items() if "ranks" not in phase.waits_for}
_SILENT_SECONDS = 5.0
_NAMED = 8


def missing(beats, now):
    """Finds the ranks that the others wait for: those whose process stands still, else those with the lowest step.

    Args:
      beats: list of `Beat`.
      now: seconds since 1970.

    Returns:
      list of `Beat`; [] if all ranks wait in one step.
    """
    silent = [beat for beat in beats if now - beat.alive > _SILENT_SECONDS]
    if silent or not beats:
        return silent
    last = min(beat.step for beat in beats)
    behind = [beat for beat in beats if beat.step == last]
    working = [beat for beat in behind if beat.phase in _ALONE]
    return working or (behind if len(behind) < len(beats) else [])


def describe(model_dir, size, own=None, now=None):
    """-> a sentence that names the ranks that a job waits for, the phase that each is in, and since when.

    Args:
      model_dir: directory of the ranks' heartbeats.
      size: number of ranks.
      own: the rank that asks; it is not named if it is before its first step. None if no rank asks.
      now: seconds since 1970; None for this moment.
    """
    now = time.time() if now is None else now
    beats = [beat for beat in (heartbeat.read(model_dir, rank) for rank in range(size)) if beat is not None]
    found = missing([beat for beat in beats if beat.rank != own or beat.phase != "start"], now)
    parts = [_describe(beat, now) for beat in found[:_NAMED]]
    if len(found) > _NAMED:
        parts.append(f"and {len(found) - _NAMED} more ranks")
    if beats and not found:
        steps = ", ".join(f"rank {beat.rank} in {beat.phase} of step {beat.step}" for beat in beats[:_NAMED])
        parts.append(f"no rank is behind ({steps}): the exchange itself does not go on")
    unknown = sorted(set(range(size)) - {beat.rank for beat in beats})
    if unknown:
        parts.append(
            f"nothing is known of rank {', '.join(map(str, unknown[:_NAMED]))}: it has left the training, or its host "
            f"does not see {model_dir}"
        )
    return "; ".join(parts)


def _describe(beat, now):
    seconds, clock = now - beat.since, time.strftime("%H:%M:%S", time.localtime(beat.since))
    where = f"rank {beat.rank} on {beat.host} is missing: in {beat.phase} of step {beat.step} since {clock}"
    text = f"{where}, for {seconds:.0f} s"
    silent = now - beat.alive
    if silent > _SILENT_SECONDS:
        text += f", without a sign of life for {silent:.0f} s: its process is stopped or dead, or its host hangs"
    return text
