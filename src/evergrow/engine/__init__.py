"""Learning on many processes or machines: a manifest of shards, one file of results per shard, files added exactly."""
