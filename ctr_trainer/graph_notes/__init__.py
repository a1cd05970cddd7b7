"""What the maker of a graph and its runner tell each other."""
