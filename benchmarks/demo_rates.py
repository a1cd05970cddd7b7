"""The demo's job by its default flags, and with `--embedding_service=shared`."""

import statistics

import demo_job

DEFAULT, SHARED = (), ("--embedding_service=shared",)


def default_vs_shared(directory, rounds):
    """-> (the median over the rounds of the default's examples/s over the shared one's, the rates by name).

    Args:
      directory: for the data, 2 M rows as `make demo` makes them, and the models.
    """
    data, rates = demo_job.demo_data(directory), {"demo": [], "demo_shared": []}
    for number in range(rounds):
        for name, flags in zip(rates, (DEFAULT, SHARED), strict=True):
            summary, _ = demo_job.train(data, f"{directory}/{name}{number}", *flags)
            rates[name].append(summary["examples_per_sec"])
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    return round(statistics.median(ratios), 3), {name: round(statistics.median(each)) for name, each in rates.items()}
