import json
import re

import numpy as np
import pytest

from ctr_trainer import cli
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.estimator.hooks.measuring_hooks import ServiceStatus
from ctr_trainer.system.messages import errors
from tests.rows import pulled
from tests.service.conftest import CONFIG, TOKEN, ones

pytestmark = pytest.mark.integration


@pytest.fixture
def shards(start, connect, tmp_path):
    """The flags that name two shards with 100 rows of table `t`."""
    addresses = [service.address for service in start(2)]
    client = connect(addresses)
    client.create_table(CONFIG)
    client.sync("t", np.arange(1, 101), ones(100), "w", 1)
    (tmp_path / "token").write_text(TOKEN)
    return [f"--embedding_service={','.join(addresses)}", f"--token_file={tmp_path / 'token'}"]


def _json(capsys, *arguments):
    assert cli.main(["service", *arguments, "--format=json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_service_command_shows_stats_and_tables_and_saves(shards, capsys, data_dir):
    stats = _json(capsys, "stats", *shards)
    assert stats["tables"]["t"]["rows"] == 100
    assert sorted(stats["services"]) == sorted(shards[0].removeprefix("--embedding_service=").split(","))
    assert all(shard["latencies"]["PsPushGrad"]["count"] == 1 for shard in stats["services"].values())
    assert cli.main(["service", "stats", *shards]) == 0
    text = capsys.readouterr().out
    assert text.count("PsPushGrad") == 2
    assert " 100 " in text
    assert "restored" in text
    resident = re.findall(r"^127\.0\.0\.1:\d+ +([\d,]+\.\d) +[\d.]+$", text, re.MULTILINE)
    assert len(resident) == 2
    assert all(float(megabytes.replace(",", "")) > 20 for megabytes in resident)  # Python, Arrow and Numba are in it.
    (table,) = _json(capsys, "tables", *shards)
    assert (table["name"], table["dims"], table["width"], table["rows"]) == ("t", [2, 1], CONFIG.width, 100)
    assert cli.main(["service", "tables", *shards]) == 0
    assert "2,1" in capsys.readouterr().out
    saved = _json(capsys, "save", *shards, f"--output={data_dir / 'by-hand'}")
    assert sum(entry["rows"] for entry in saved["files"]) == 100
    assert all((data_dir / "by-hand" / entry["file"]).exists() for entry in saved["files"])
    assert cli.main(["service", "save", *shards, f"--output={data_dir.parent / 'elsewhere'}"]) == 1
    assert "outside the service's data_dir" in capsys.readouterr().err


def test_rank_0_shows_what_all_shards_did_since_its_last_lines(start, connect, data_dir):
    client = connect([service.address for service in start(2)])
    client.create_table(CONFIG)
    client.sync("t", np.arange(1, 101), ones(100), "w", 1)
    status = ServiceStatus(client)  # What was before, as of another job, does not count.
    for sequence in (2, 3, 4):
        client.sync("t", np.arange(1, 101), ones(100), "w", sequence)
    pulled(client, "t", np.arange(1, 101))
    lookups, pushes = status.lines()
    figures = r"  P50: \d+  P95: \d+  P99: \d+  Max: \d+, of 2 shards of the service"
    assert re.fullmatch(rf"\[RunStatus\]: PsEmbeddingLookup statistics => count: 2{figures}", lookups)
    assert re.fullmatch(rf"\[RunStatus\]: PsPushGrad statistics => count: 6{figures}", pushes)
    assert all("count: 0  P50: 0 " in line for line in status.lines())
    assert ServiceStatus(LocalStore()).lines() == []
    client.restore(data_dir / "counted", client.save(data_dir / "counted", 1))
    client.sync("t", np.arange(100, 111), ones(11), "w", 5)
    figures = client.stats()["tables"]["t"]
    assert (figures["rows"], figures["created"], figures["restored"]) == (110, 110, 100)


def test_what_is_missing_is_named(capsys):
    assert cli.main(["service"]) == 2
    assert "service needs one of stats, tables, save" in capsys.readouterr().err
    assert cli.main(["service", "stats"]) == 1
    assert "--embedding_service is missing" in capsys.readouterr().err
    assert cli.main(["service", "stats", "--embedding_service=127.0.0.1:1", "--service_timeout=0.3"]) == errors.LOST
    assert "127.0.0.1:1 did not answer" in capsys.readouterr().err
