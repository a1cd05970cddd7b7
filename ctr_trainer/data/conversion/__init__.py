"""Converts source files to data sets, and drafts feature specs."""
