"""Layers: functions of tensors from which models are composed; `get_variable` creates their variables."""
