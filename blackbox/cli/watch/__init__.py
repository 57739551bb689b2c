"""Commands to look at while feeds run: states, a screen, a console, a page."""
