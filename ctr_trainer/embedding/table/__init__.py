"""A table of rows in one process: how rows are made, trained, admitted and evicted."""
