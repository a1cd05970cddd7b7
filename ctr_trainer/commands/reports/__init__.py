"""Reports that compare the results of training runs."""
