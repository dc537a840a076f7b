"""Commands for a laptop: servers without containers, and a shop that shows all of it at work.

In: names of servers and of demos. Out: running servers with their URLs, a demo's steps and what they showed.
The command line loads each by name; nothing else imports them.
"""
