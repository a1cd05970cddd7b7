"""Which variants of the models of histories and of several labels are tested."""

# By name: (labels of the data, model, its settings). Every kind of feature is in the data.
CASES = {
    "din": (1, "din", {"attention_units": (6, 4), "wide": "linear"}),
    "dien": (1, "dien", {}),
    "bst": (1, "bst", {"blocks": 2}),
    "onetrans": (1, "onetrans", {"blocks": 2}),
    "sdim": (1, "sdim", {"signatures": 4, "bits": 2}),
    "din-of-two-labels": (2, "din", {"label": "bought"}),
    "shared_bottom": (2, "shared_bottom", {"tower_units": (4,)}),
    "mmoe": (2, "mmoe", {"experts": 2, "tower_units": ()}),
    "ple": (2, "ple", {"task_experts": 1, "shared_experts": 1, "tower_units": (4,)}),
    "esmm": (2, "esmm", {}),
}
