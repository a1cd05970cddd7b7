"""The parts that models are composed of: functions of tensors, whose variables `get_variable` makes."""
