"""What click does not give each command's `--help` by itself: an example, and the whole line of it in its group's."""

from __future__ import annotations

from typing import Final

import click

EXAMPLES: Final = {
    "check": "cdc check connector.yaml",
    "run": "cdc run connector.yaml\ncdc run connector.yaml --until-caught-up --log-format json",
    "fleet add": "cdc fleet add shop.yaml billing.yaml --fleet main --bootstrap-servers kafka:9092",
    "fleet list": "cdc fleet list --config fleet.yaml",
    "fleet remove": "cdc fleet remove shop --config fleet.yaml",
    "fleet restart": "cdc fleet restart shop --config fleet.yaml",
    "fleet run": "cdc fleet run --config fleet.yaml",
    "fleet status": "cdc fleet status --config fleet.yaml --json",
    "apply": "cdc apply apply.yaml --plan\ncdc apply apply.yaml\ncdc apply apply.yaml --once --json",
    "view check": "cdc view check views.yaml",
    "view explain": "cdc view explain views.yaml --view turnover --key paid",
    "view plan": "cdc view plan views.yaml",
    "view rebuild": "cdc view rebuild views.yaml --dry-run",
    "view run": "cdc view run views.yaml",
    "view status": "cdc view status views.yaml",
    "view verify": "cdc view verify views.yaml --view turnover",
    "rebuild": "cdc rebuild apply.yaml --table public.orders --store warehouse",
    "replay": "cdc replay apply.yaml --as tuesday --from 24h --plan",
    "snapshot start": "cdc snapshot start connector.yaml --table public.orders",
    "snapshot status": "cdc snapshot status connector.yaml",
    "snapshot stop": "cdc snapshot stop connector.yaml --table public.orders",
    "pause": "cdc pause connector.yaml",
    "resume": "cdc resume connector.yaml",
    "reload": "cdc reload connector.yaml",
    "tail": "cdc tail connector.yaml --from-beginning --max 10\ncdc tail connector.yaml --json | jq .value.op\n"
    "cdc tail connector.yaml --dead-letters --from-beginning",
    "explain": "cdc explain apply.yaml --table public.orders --key 1001",
    "status": "cdc status connector.yaml\ncdc status apply.yaml --json",
    "consumers": "cdc consumers connector.yaml",
    "offsets export": "cdc offsets export connector.yaml > offsets.json",
    "offsets import": "cdc offsets import connector.yaml offsets.json",
    "offsets show": "cdc offsets show apply.yaml",
    "audit": "cdc audit connector.yaml",
    "monitor": "cdc monitor connector.yaml apply.yaml views.yaml",
    "token": "TOKEN=$(cdc token connector.yaml)",
    "wait": 'cdc wait apply.yaml --token "$TOKEN" --timeout 30s',
    "quarantine list": "cdc quarantine list apply.yaml --table public.orders",
    "quarantine retry": "cdc quarantine retry apply.yaml --table public.orders --key 1001",
    "verify": "cdc verify connector.yaml apply.yaml --table public.orders",
    "erase": "cdc erase connector.yaml --table public.users --key 5 --apply apply.yaml",
    "dev down": "cdc dev down",
    "dev status": "cdc dev status",
    "dev up": "cdc dev up\ncdc dev up mysql kafka --dir /tmp/servers",
    "demo": "cdc demo",
}
"""By the words behind `cdc`: lines for a shell, with the names of files that the documents use."""


def show_examples(command: click.Command, words: str) -> None:
    """Let a command's `--help`, and those of the commands below it, end with its examples."""
    if words in EXAMPLES:
        lines = EXAMPLES[words].replace("\n", "\n  ")
        command.epilog = f"\b\nExamples:\n  {lines}"
    if not command.short_help and command.help:  # which click would cut off in the middle
        command.short_help = command.help.partition("\n\n")[0]
    for name, below in command.commands.items() if isinstance(command, click.Group) else ():
        show_examples(below, f"{words} {name}")
