import pytest

from ctr_trainer.system.messages.log_lines import format_seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (130, "2 min 10 s"), (3900, "1 h 5 min"), (273_600, "3 d 4 h")],
)
def test_seconds_for_people(seconds, text):
    assert format_seconds(seconds) == text
