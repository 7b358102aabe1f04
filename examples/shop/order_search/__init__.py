"""Finding an order: the newest state of every order that is not cancelled, in Elasticsearch."""
