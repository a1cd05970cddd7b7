"""The phases of a training step as text."""

# In the order of a step; the names are those of `PhasesHook`.
TITLES = {
    "read_sample": "read sample",
    "embedding_lookup": "embedding lookup",
    "input_to_device": "input to device",
    "forward": "forward",
    "loss": "loss",
    "backward": "backward",
    "exchange": "gradient exchange",
    "dense_update": "dense update",
    "push": "push (row update)",
    "sync": "sync",
    "hooks": "metrics and logs",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
}


def format_phases(phases):
    """-> one line a phase, of what `PhasesHook.results` returned; None is of a run too short to tell."""
    if phases is None:
        return ["phases of a step: the run was too short, no step was traced after the first --phase_steps"]
    step = phases["step_seconds"]
    lines = [
        f"phases of a step of {1000 * step:.2f} ms, from {phases['traced_steps']} traced of {phases['steps']} steps:"
    ]
    for name, seconds in phases["seconds"].items():
        lines.append(f"  {TITLES[name]:<20}{1000 * seconds:>9.2f} ms{seconds / step:>8.1%}")
    return [*lines, f"  {'accounted':<20}{'':>12}{phases['accounted']:>8.1%}"]
