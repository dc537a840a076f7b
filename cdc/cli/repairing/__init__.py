"""Commands that change what is there: read again, build again, take again, move, erase.

In: YAML files, what is asked for. Out: requests in signal topics, copies swapped, positions moved, traces gone.
The command line loads each by name; nothing else imports them.
"""
