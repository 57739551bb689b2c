"""Analyses as functions of data frames."""
