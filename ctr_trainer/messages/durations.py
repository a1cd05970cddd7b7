"""Durations as text."""


def format_seconds(seconds):
    """-> a duration in seconds as text: `45 s`, `2 min 10 s`, `1 h 5 min`, `3 d 4 h`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
