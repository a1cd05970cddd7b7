"""Inspects running shards of the embedding lookup service (rows, memory, rates), or makes them save their rows."""

import json
from collections.abc import Callable
from typing import Any

from ctr_trainer.settings.by_flag import require
from ctr_trainer.settings.command_flags import ServiceFlags

GROUPS = (ServiceFlags,)
ACTIONS = {
    "stats": "rows, bytes, requests and percentiles, by shard and in all",
    "tables": "the layout of each table",
    "save": "write all rows below --output, a new directory inside the shards' --data_dir",
}
EXAMPLES = (
    "python -m ctr_trainer service stats --embedding_service=127.0.0.1:7700",
    "python -m ctr_trainer service tables --embedding_service=a:7700,b:7700 --token_file=token --format=json",
    "python -m ctr_trainer service save --embedding_service=a:7700,b:7700 --output=/shared/models/ctr/by-hand",
)


def run(action: str, flags: ServiceFlags) -> None:
    """Prints the responses of the shards as a table or, with --format=json, as a JSON object."""
    import contextlib

    from ctr_trainer.embedding.service.client import ServiceClient
    from ctr_trainer.embedding.service.security import ClientSecurity

    require(flags, "service")
    if action == "save":
        require(flags, "output")
    security = ClientSecurity.read(*vars(flags.security).values())
    client = ServiceClient(flags.service.split(","), flags.service_timeout, security)
    answer: Any
    table: Callable[[Any], str]
    with contextlib.closing(client):
        if action == "stats":
            answer, table = client.stats(), _stats_table
        elif action == "tables":
            answer, table = client.tables(), _layout_table
        else:
            answer, table = {"path": flags.output, "files": client.copy(flags.output)}, _files_table
    print(json.dumps(answer) if flags.format == "json" else table(answer), flush=True)


def _stats_table(stats: dict[str, Any]) -> str:
    from ctr_trainer.embedding.table import cold_rows

    lines = [f"{'table':<12}{'rows':>14}{'MB':>10}{'created':>14}{'restored':>14}{'evicted':>12}"]
    for name, table in stats["tables"].items():
        figures = f"{table['rows']:>14,}{table['bytes'] / 1e6:>10,.1f}{table['created']:>14,}"
        lines.append(f"{name:<12}{figures}{table['restored']:>14,}{table['evicted']:>12,}")
    on_disk = {name: table for name, table in stats["tables"].items() if cold_rows.STATS[0] in table}
    lines += [cold_rows.status_line(name, table, {}) for name, table in on_disk.items()]
    lines += ["", f"{'shard':<24}{'operation':<20}{'count':>10}{'P50':>8}{'P95':>8}{'P99':>8}{'Max':>9}  (us)"]
    for address, shard in stats["services"].items():
        for operation, p in shard["latencies"].items():
            figures = f"{p['count']:>10,}{p['P50']:>8}{p['P95']:>8}{p['P99']:>8}{p['Max']:>9}"
            lines.append(f"{address:<24}{operation:<20}{figures}")
    lines += ["", f"{'shard':<24}{'MB resident':>14}{'CPU s':>10}"]
    for address, shard in stats["services"].items():
        lines.append(f"{address:<24}{shard['resident_bytes'] / 1e6:>14,.1f}{shard['cpu_seconds']:>10,.1f}")
    return "\n".join(lines)


def _layout_table(tables: list[dict[str, Any]]) -> str:
    lines = [f"{'table':<12}{'dims':<12}{'optimizer':<18}{'floats a row':>12}{'rows':>14}"]
    for table in tables:
        dims = ",".join(map(str, table["dims"]))
        lines.append(f"{table['name']:<12}{dims:<12}{table['optimizer']:<18}{table['width']:>12}{table['rows']:>14,}")
    return "\n".join(lines)


def _files_table(saved: dict[str, Any]) -> str:
    lines = [f"{entry['file']:<60}{entry['rows']:>14,} rows{entry['bytes']:>16,} bytes" for entry in saved["files"]]
    return "\n".join([f"saved in {saved['path']}:", *lines])
