raise ImportError("matplotlib is for `report` and the benches, not for workers")
