"""Notes on a graph, which pass information between the code that builds it and the code that runs it."""
