"""What several commands share: their arguments, consoles, tables, live screens and exit statuses."""
