"""Hubs of several sites find each other."""
