"""Bridges from and to RabbitMQ."""
