"""Commands for live feeds and replays."""
