"""The operator console: alerts and conditions of an installation, their history, and where they are forwarded."""
