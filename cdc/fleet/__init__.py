"""A fleet shares connectors among any number of machines: members run them, and take over from one that is gone.

In: the entries of the fleet's topic (a connector's file each), and the places that Kafka's group protocol gives to this
member. Out: a process for each connector whose place is this member's, and its state, written to the topic.

    entry.py     an entry: its record, what of it is compared, what is refused. Pure.
    clash.py     what two entries must not share. Pure.
    secrets.py   finds secrets that stand in a file. Pure.
    roster.py    what is to be started and stopped. Pure.
    children.py  the processes, forked by nursery.py.
    member.py    the loop that joins these.
    meter.py     what it tells of itself, to who counts it.
    standing.py  what `cdc fleet status` shows. Pure.

Imported by `cdc.cli`, and by `cdc.telemetry` for what a member shows. Kafka is behind `seams.py`: `sinks.fleet.topic`
and `sinks.fleet.group`.

Nothing of exactly once rests on any of this. Two members may believe to have the same connector, and both may run it:
Kafka's fencing lets only the newest copy commit, which goes on from the position that all before it have committed.
"""
