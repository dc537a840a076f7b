"""Writes docs/cli.md, the reference of every command, from the commands themselves.

python -m cdc.cli.reference > docs/cli.md
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Final

import click

from cdc.cli.examples import EXAMPLES
from cdc.cli.main import cdc

_HEAD: Final = """\
# Command-line reference

This page is generated from the commands: `python -m cdc.cli.reference > docs/cli.md`. `cdc COMMAND --help` prints the
same text in a terminal.

- Data goes to stdout, everything else (logs, progress, errors, hints) to stderr.
- `CONNECTOR.yaml` is described in the [connector reference](connector-reference.md), `APPLY.yaml` in the
  [apply reference](apply-reference.md). Relative paths in these files are relative to the current directory.
- With `--json` a command prints one JSON object on one line. Its keys are stable: new ones may be added, none is
  renamed or removed within a version of the format.
- `eval "$(_CDC_COMPLETE=bash_source cdc)"` completes commands and options in bash; there are
  `zsh_source` and `fish_source`, too.
- An error is printed as `error:` with what was found and where, and mostly `hint:` with the next step. The
  [troubleshooting](troubleshooting.md) page lists them by their first words.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | it failed, or the answer is no; each command below says what no means |
| 2 | wrong use: an option, a file or an environment variable is wrong, and nothing was started |
| 3 | `cdc run` or `cdc view run` was fenced: another copy has taken over, nothing is to be repaired |
| 4 | a [verdict](guarantees.md#start-up-verdicts) that each start finds again: somebody has to decide |
| 130 | interrupted (Ctrl-C): a command that has no end of its own choice, or that was to take everything and has not |
| 143 | the same by SIGTERM: with `--once` or `--until-caught-up`, before everything was taken |
"""

EXITS: Final[Mapping[str, str]] = {
    "check": "0: a run can start. 1: something would stop it; the findings of level `error` say what.",
    "run": "0: stopped by SIGTERM or Ctrl-C, or (`--until-caught-up`) caught up. 130, 143: with `--until-caught-up`, "
    "ended by Ctrl-C or SIGTERM before that. 1: an error; the next start may go well, once a "
    "server is put right. 3: another copy of the connector has taken over. 4: a verdict, which each start finds again. "
    "Of several connectors it is the first code that a restart may help, else the first, and comes when all have "
    "ended.",
    "fleet run": "0: stopped by SIGTERM or Ctrl-C, and out of the group. 1: Kafka refuses the member, or its name is "
    "another's.",
    "fleet add": "0: all are added. 2: a file is wrong, or does not go with another entry: none is added.",
    "fleet restart": "0: all are asked for. 1: there is no such fleet. 2: a name is not known, or its entry is "
    "wrong: none is.",
    "fleet remove": "0: all are removed. 1: there is no such fleet. 2: a name is not known: none is removed.",
    "fleet list": "0: it could be told. 1: there is no such fleet.",
    "fleet status": "0: it could be told, also of connectors that are down. 1: there is no such fleet.",
    "apply": "0: stopped by SIGTERM or Ctrl-C, or (`--once`) everything was taken. 130, 143: with `--once`, "
    "ended by Ctrl-C or SIGTERM before that. 1: the job stopped, a table "
    "is set aside, or (`--plan`) "
    "it "
    "would not start, or set a table aside.",
    "rebuild": "0: every copy asked for was swapped or put back. 1: one was refused or failed; those before it are "
    "swapped.",
    "view run": "0: stopped by SIGTERM or Ctrl-C, or (`--once`) everything was taken. 130, 143: with `--once`, "
    "ended by Ctrl-C or SIGTERM before that. 1: the job stopped, or a view is stopped at the end. 3: another "
    "copy of the job has taken over.",
    "replay": "0: stopped, or (`--once`) everything was taken. 130, 143: with `--once`, ended by Ctrl-C or "
    "SIGTERM before that. 1: the job stopped, a table is set aside (with `--plan` "
    "it would be), or the topics do not have that span.",
    "view rebuild": "0: it is published; with `--dry-run`: no row would change. 1: with `--dry-run`, rows would "
    "change; else it could not be published, and all is as it was.",
    "view explain": "0: the view's topic has records of the key. 1: it has none.",
    "explain": "0: the topic has records of the key. 1: it has none.",
    "status": "0: it could be told, also of something that is down.",
    "wait": "0: every store holds what the token stands for. 1: not before the timeout, or never.",
    "quarantine retry": "0: nothing is left. 1: some events still do not fit.",
    "verify": "0: the copies agree with the source. 1: they differ, or it cannot be told.",
}
"""What a command's exit codes say beyond the general table."""

OUTPUTS: Final[Mapping[str, str]] = {
    "check": "`name`, `ok`, `findings[level, about, message, fix]`; `level` is `ok`, `warning` or `error`, `fix` a "
    "statement, a command or null.",
    "apply": "`name`, `seconds`, `batches`, `behind`, `aside.<table>.<store>` (why), "
    "`tables.<table>.<store>` with `events`, `keys`, `written`, "
    "`deleted`, "
    "`stale`, `duplicate`, `quarantined` (null where a store does not count). With `--plan`: `name`, `starts`, "
    "`checkpoint`, `copies[table, store, action, steps, why, hint, mode, rebuild]`, `topics[topic, begin, offsets]`, "
    "`problems[what, hint]`; see [--plan](apply-reference.md#--plan).",
    "erase": "`table`, `places[place, verdict, what, by_ms]`; [more](erasure.md).",
    "view check": "as `cdc view plan`.",
    "view plan": "`name`, `tables`, `views.<name>` with `reads`, `key`, `columns` (kinds by name), `uses_clock`, "
    "`warnings`, `nodes[name, reads, units, deadlines, stops]`; a node without units is computed whole.",
    "view run": "`name`, `seconds`, `steps` (how often the views were computed), `events` (written, tombstones not "
    "counted), `position`, `stopped` (by view, why).",
    "view status": "`name`, `position`, `freshness_seconds`, `engine`, `streams.<name>.unreadable` (records), "
    "`views.<name>` with `topic`, `generation`, `rows`, `computed` (`whole` or by `units`, last), `quarantined` "
    "(units), `late` (events), `stopped` (why, or null), `published`.",
    "view explain": "`view`, `topic`, `key`, `outcome` (`row`, `none`, `quarantined`, `stopped`, `differs`), "
    "`position`, `clock_ms`, `published` and `computed` (rows), `unit`, `derived_from[table, key, position, at_ms]`, "
    "`more`, `deadline`, `changed_by`, `records` as of `cdc explain`; [more](views.md#why-a-row-is-as-it-is).",
    "view verify": "`agree`, `views[view, position, rows, missing, extra, different, quarantined, failed, "
    "keys[how, key]]`; `quarantined` is how many units cannot be published, which is no difference; `failed` says why "
    "Spark has no answer, or is null; `repaired` (names of views).",
    "view rebuild": "`differs`, `views[view, position, generation, added, changed, removed, keys[how, key]]`; "
    "`generation` is null with `--dry-run`.",
    "rebuild": "`name`, `seconds`, `copies[table, store, events, …]` with the counts of rows that were only in the "
    "old copy, "
    "only in the new one, and different. With `--rollback`: `copies[table, store, live_until]`.",
    "replay": "as `cdc apply`, and `replay` with `name`, `checkpoint`, `targets` (table to the copies' name), `copies` "
    "(table to stores), `goes_on` (from its own checkpoint), `tables[table, topic, keeps, first_offsets, first_at, "
    "begin_offsets, begin_at, offsets, says]`, `left` (by table, `reason` and `hint`: what is set aside at the start); "
    "with `--plan` that alone.",
    "snapshot start": "`id` of the command, `tables` that it asks for.",
    "snapshot stop": "`id` of the command, `tables` that it asks for.",
    "pause": "`id` of the command, `connector`, `log_seconds` (how long the server keeps its log, null where that is "
    "not known), `log` (the same in words).",
    "resume": "`id` of the command, `connector`.",
    "reload": "`id` of the command, `connector`.",
    "snapshot status": "by table: `phase` (`initial`, `waiting`, `reading`, `deleting`), `rows`, `estimate`, "
    "`required`, "
    "`eta_s`.",
    "tail": "one object a line: `topic`, `partition`, `offset`, `key`, `value`. Lines are JSON without the option, "
    "too, "
    "wherever stdout is no terminal.",
    "explain": "`table`, `topic`, `key`, `outcome` (`row`, `deleted`, `left out`, `unknown`), `where`, `records[…]` "
    "with "
    "`partition`, `offset`, `op`, `schema_version`, `committed_at_ms`, `transaction`, `position`, `verdict`, "
    "`because`, "
    "and `quarantined[…]`.",
    "status": "of a connector: `name`, `phase`, `running`, `position`, `committed_at`, `lag_bytes`, `lag_seconds` "
    "(the age of `source_at`), `source_at` (up to when all that was committed at the source is in Kafka; null before "
    "all tables are read), `paused_at` (null while it is not paused), "
    "`asked` (commands that it has not carried out yet: `action`, `by`, `asked_at`, `about`), "
    "`standby` (copies that stand by, null where the server does not tell), `tables`, "
    "`logged`, `snapshot`, `reading`, `eta_seconds`, `slot`, `dead_letters`, `rereads`, `left_out` "
    "(by table, `at_ms`, `reason`, `hint`: what the last start goes on without), `source`, `last_error`. Of an "
    "apply job: `name`, `stores.<store>.<connector>` with `position`, `freshness_seconds`, `source_at`, "
    "`published_at`, `tables`, `incomplete`, `remade` (tables whose copy is of a topic that was made again since), "
    "`quarantined`, `aside` (`at_ms`, `reason`, `hint` of each table that is set aside), "
    "`refused` (`reason`, `hint` of "
    "each other table that cannot be copied as the file is, or whose copy cannot be read).",
    "fleet list": "`fleet`, `connectors.<name>` with `topic_prefix`, `place`, `added_at`, `yaml`, `error` (why it is "
    "run by nobody, else null).",
    "fleet status": "`fleet`, `members.<name>` with `host` and `places`, `connectors.<name>` with `state`, `member`, "
    "`since_at`, `again_at` (when it is started again), `place`, `last_error` (`at_ms`, `kind`, `message`, `hint`).",
    "consumers": "`connector`, `groups[group, state, records, exact, seconds, status, topics[topic, records, exact, "
    "seconds, status, partitions[partition, offset, end, records, exact, seconds, status, note]]]`, `unreadable` "
    "(group to why), `no_commits` (why no commits can be read, or null); [more](monitor.md#consumers).",
    "offsets show": "as `cdc offsets export` prints: `cdc_offsets` (the format's version), `of` (`connector`, "
    "`apply`), `name`, `prefix`, `at_ms`, of a connector `identity`, `phase`, `epoch`, `offset`, `commit`, "
    "`source_ms`, `tables`, of an apply job `topics` (to identities), `ends` (topic to partition to offset), `copies`; "
    "`checksum`.",
    "offsets import": "`name`, `did` (`same`, `repeat`, `skip`), `means` (in words), of an apply job `kept` (the "
    "checkpoint as it was).",
    "audit": "`name`, `acts[at_ms, connector, action, by, asked_ms, id, about, outcome, position]`; "
    "[more](operations.md#audit).",
    "token": "`token`, `connector`, `position`.",
    "wait": "`reached`, `waited_seconds`, `behind` (store to position), `quarantined` (store to count).",
    "quarantine list": "`name`, `entries[store, table, topic, partition, offset, key, position, reason, at_ms]`.",
    "quarantine retry": "`name`, `left`, `entries[…]` as `list` has them, each with `outcome` (`applied`, `gone`, "
    "`left`).",
    "verify": "`agree`, `copies[table, store, rows, equal, differing, missing, extra, undecided, quarantined, "
    "unchecked, "
    "unwritable, not_compared, hint]`, `asked` (with `--repair`: table to count).",
    "dev up": "name of the server to its URL.",
    "dev down": "`stopped`: names of servers.",
    "dev status": "name of the server to its URL, null where it is stopped.",
}
"""What `--json` prints, by command."""


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command below `cdc`, groups before what is in them, by its words: ``snapshot start``."""

    def below(
        group: click.Group, context: click.Context, words: str
    ) -> Iterator[tuple[str, click.Command, click.Context]]:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None:
                inner = click.Context(command, info_name=name, parent=context)
                full = f"{words} {name}".strip()
                yield full, command, inner
                if isinstance(command, click.Group):
                    yield from below(command, inner, full)

    yield from below(cdc, click.Context(cdc, info_name="cdc", **cdc.context_settings), "")


def page() -> str:
    """The whole of docs/cli.md."""
    found = list(commands())
    listed = "\n".join(f"- [`cdc {words}`](#cdc-{words.replace(' ', '-')})" for words, *_ in found)
    sections = "\n".join(_section(words, command, context) for words, command, context in found)
    return f"{_HEAD}\n## Commands\n\n{listed}\n\n{sections}"


def _section(words: str, command: click.Command, context: click.Context) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    blocks = [
        f"## cdc {words}",
        f"```text\ncdc {words} {usage}".rstrip() + "\n```",
        inspect.cleandoc(command.help or ""),
    ]
    if words in EXAMPLES:
        blocks.append(f"```sh\n{EXAMPLES[words]}\n```")
    options = [each for each in command.params if isinstance(each, click.Option)]
    if options:
        rows = "\n".join(_row(each, context) for each in options)
        blocks.append(f"| option | default | meaning |\n|---|---|---|\n{rows}")
    if words in EXITS:
        blocks.append(f"Exit codes: {EXITS[words]}")
    if words in OUTPUTS:
        blocks.append(f"JSON: {OUTPUTS[words]}")
    return "\n\n".join(blocks) + "\n"


def _row(option: click.Option, context: click.Context) -> str:
    takes = "" if option.is_flag else f" {option.make_metavar(context)}"
    names = ", ".join(f"`{name}{takes}`" for name in option.opts)
    default = f"`{option.default}`" if option.show_default else "required" if option.required else ""
    several = " May be given several times." if option.multiple else ""
    return f"| {names} | {default} | {(option.help or '').replace('|', chr(92) + '|')}{several} |"


if __name__ == "__main__":
    click.echo(page(), nl=False)
