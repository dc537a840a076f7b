"""etcd: prefixes of keys as tables, followed by a watch.

In: the endpoints of a cluster. Out: transactions of `cdc.model.change`, one a revision. `gateway` asks, `watch`
follows, `backlog` puts what several watchers send into one order, `messages` knows the JSON of both, `place` is the
position. Named in `cdc.config.registry`; `snapshot.etcd` imports the gateway and the tables.
"""
