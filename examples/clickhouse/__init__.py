"""Three kinds of ClickHouse table: the newest state of each thing, every event, and sums that ClickHouse keeps."""
