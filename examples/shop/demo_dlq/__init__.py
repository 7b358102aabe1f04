"""A bad release and its repair on real servers: dead letters, a rehearsal, a replay that is killed, with a proof."""
