"""Reports: the results of training runs, side by side."""
