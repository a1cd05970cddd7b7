"""The documentation's example is run as it stands."""

import pathlib
import re
import textwrap

import numpy as np
import pytest

from ctr_trainer.embedding.service.security import ServerSecurity
from ctr_trainer.embedding.service.service import Service
from tests.service.conftest import CONFIG, ones

pytestmark = pytest.mark.integration
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "embedding_service.md"


def test_a_plain_flight_client_reads_rows_as_the_page_shows(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"(?:^    .*\n|^\n)*?^    import json\n(?:^    .*\n|^\n)*", PAGE.read_text(), re.MULTILINE)
    code = textwrap.dedent(code)
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.chdir(tmp_path)
    with Service("127.0.0.1", 0, tmp_path, ServerSecurity.read("token")) as service:
        service._store.create_table(CONFIG)
        service._store.sync("t", np.array([7, 9]), ones(2), "w", 1)
        seen = {}
        exec(code.replace("127.0.0.1:7700", f"127.0.0.1:{service.port}"), seen)
    assert capsys.readouterr().out == "t [2, 1] 2\n"
    assert seen["keys"].to_pylist() == [7, 9]
    assert len(seen["rows"]) == 2
