"""Shared by live clients: retries, received datagrams, gaps that are held until the venue has filled them."""
