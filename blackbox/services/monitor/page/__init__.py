"""A page in the browser: live tables, charts, and prices and books of chosen symbols."""
