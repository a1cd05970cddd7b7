"""Notes on a graph: what the code that makes the graph tells the code that runs it."""
