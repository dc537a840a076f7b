"""What a connector's file says of what is published, and how: columns, rows, formats, the outbox.

In: values of the file, bound by `cdc.config.yaml.yaml_binding`. Out: frozen dataclasses and conditions, checked.
`cdc.config.config` and `cdc.rules` import it.
"""
