"""Files, processes, clocks and messages: what the rest of the package stands on; nothing here knows of models."""
