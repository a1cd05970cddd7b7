"""What a training run asks of the machine, its network and the lookup service."""

import time

import psutil

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.step_hook import StepHook


class LoadHook(StepHook):
    """Counts from after the first `skip_steps` steps of a run to its last one.

    Caveat: the bytes are all that pass the machine's network interfaces, whoever sends them.

    Args:
      store: of `open_store`; a lone worker's has no service.
      skip_steps: at least 1.
    """

    order = Order.LOAD

    def __init__(self, store, skip_steps):
        super().__init__()
        self._store, self._skip_steps = store, skip_steps
        self._done = 0
        self._from = self._until = None

    def after_step(self, run_context, run_values):
        self._done += 1
        if self._done == self._skip_steps:
            self._from = self._read()

    def end(self, session):
        self._until = self._read()

    def results(self):
        """-> dict of what happened a second: `cpu` (cores that this process used), `network` (by interface,
        `received` and `sent` bytes), and where there is a service `service`: `cpu` (cores that all shards used) and
        `requests`; None of a run that was too short or did not end.
        """
        if self._from is None or self._until is None:
            return None
        begin, end = self._from, self._until
        seconds = max(end["time"] - begin["time"], 1e-9)

        def rate(of):
            return (of(end) - of(begin)) / seconds

        load = {"cpu": rate(lambda at: at["cpu"]), "network": {}}
        for name in end["network"].keys() & begin["network"].keys():
            received, sent = (rate(lambda at, name=name, i=i: at["network"][name][i]) for i in (0, 1))
            if received or sent:
                load["network"][name] = {"received": received, "sent": sent}
        if end["services"]:
            load["service"] = {
                "cpu": rate(lambda at: sum(service["cpu_seconds"] for service in at["services"])),
                "requests": rate(lambda at: sum(sum(service["requests"].values()) for service in at["services"])),
            }
        return load

    def _read(self):
        counters = psutil.net_io_counters(pernic=True)
        return {
            "time": time.perf_counter(),
            "cpu": time.process_time(),
            "network": {name: (each.bytes_recv, each.bytes_sent) for name, each in counters.items()},
            "services": list(self._store.stats().get("services", {}).values()),
        }
