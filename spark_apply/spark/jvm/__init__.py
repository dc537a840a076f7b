"""The Java virtual machine under a session: what it finds around it, its archive of classes, its folder.

In: the environment, the jars. Out: options and classes for `session`, which starts it.
The rest of `spark` may import it; `build_class_archive`, a command, imports `session`.
"""
