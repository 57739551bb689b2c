"""What several formats share: windows on files, packet captures, sequence numbers, dates, topics by template."""
