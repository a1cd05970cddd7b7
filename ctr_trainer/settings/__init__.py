"""Settings: each declared once, on the frozen dataclass that is made of it; Python and the flags check alike."""
