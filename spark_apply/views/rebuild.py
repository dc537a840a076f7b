"""Publishes views by other definitions: by those of the file, those of the generation before, or the same once more.

The difference is found beside, by Spark, as `verify` finds it: nothing is touched. Then the view job is asked to
publish it. One that runs takes new definitions over between two steps; where none does, one runs here until it is done.
Either way the new rows, what of the old ones is not among them, and the position are one Kafka transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from cdc.config.views import ViewsConfig
from cdc.machine.stop_signals import end_by
from cdc.model.errors import CdcError, ConfigError, FencedError, OperatorError
from cdc.model.state import State
from cdc.model.suggestion import did_you_mean
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.spark.session import open_session
from spark_apply.views.embedded.state import StateInUseError
from spark_apply.views.job import run_views
from spark_apply.views.planning.definitions import Definition, Text, changed, published, same, texts_of, with_texts
from spark_apply.views.planning.followable import refuse_unfollowable
from spark_apply.views.planning.planned import plan_views
from spark_apply.views.proof.verify import Verified, compare_views, standing
from spark_apply.views.running.commands import Command, Commands, leave, new_command, waiting

Progress = Callable[[str], None]

TAKEN_S = 5.0
"""A job that runs has said by then that it will do what it is asked for."""
_LOOK_S: Final = 0.3
_MISSED: Final = (
    "has the file lost a view that it reads, or a table a column? Write that view into the file again, or a new "
    "definition: cdc view rebuild VIEWS.yaml"
)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild has found, and done."""

    views: Sequence[Verified]
    """By how much the rows that are published differ from those of the definitions that are asked for."""
    generations: Mapping[str, int] = field(default_factory=dict)
    """Of each view, after it was published; empty: nothing was."""

    @property
    def differs(self) -> bool:
        return any(not of.agrees for of in self.views)

    def as_json(self) -> dict[str, object]:
        """Return the stable JSON of ``cdc view rebuild --json``."""
        return {
            "differs": self.differs,
            "views": [
                {
                    "view": of.view,
                    "position": of.position,
                    "generation": self.generations.get(of.view),
                    "added": of.missing,
                    "removed": of.extra,
                    "changed": of.different,
                    "keys": [{"how": _HOWS.get(how, how), "key": key} for how, key in of.keys],
                }
                for of in self.views
            ],
        }


_HOWS: Final = {"missing": "added", "extra": "removed", "different": "changed"}


def rebuild_views(
    config: ViewsConfig,
    *,
    only: Collection[str] = (),
    rollback: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Rebuilt:
    """Publish views by their definitions in the file; without `only` those of which the file has another one.

    These are, too, those that a command would change which a killed rebuild has left: the file counts.

    With `rollback` by the definitions of the generation before. With `dry_run` nothing is published. Raises ConfigError
    for what cannot be asked, OperatorError where it could not be done: then what is published is as it was.
    """
    tell = progress or (lambda _line: None)
    state = standing(config)
    texts = _wanted(config, state, only, rollback=rollback)
    if not texts:
        return Rebuilt(())
    going = _going(config, state, texts)
    spark = open_session(config.name, config.spark)
    try:
        planned = plan_views(going, spark)
    except ConfigError as exc:
        if not rollback:
            raise
        msg = f"--rollback of {', '.join(texts)}: with the definition before, {exc.message}"
        raise ConfigError(msg, hint=_MISSED) from exc
    refuse_unfollowable(planned.views, texts, schema_versions(config.source))
    found = compare_views(going, planned, texts, tell, rebuilt=True)
    for of in found:
        if of.failed is not None:
            raise OperatorError(
                f"views.{of.view}: {of.failed}", hint="what is published is as it was; correct the SQL, or the rows"
            )
    if dry_run:
        return Rebuilt(found)
    publish(going, texts, tell)
    after = published(standing(config))
    return Rebuilt(found, {name: after[name].generation for name in texts if name in after})


def repair_views(
    config: ViewsConfig, found: Sequence[Mapping[str, object]], *, progress: Progress | None = None
) -> list[str]:
    """Have the views computed again that `verify` has found to differ, given as its JSON; return which they are."""
    parts = ("missing", "extra", "different")
    names = [str(of["view"]) for of in found if not of["failed"] and any(of[part] for part in parts)]
    if names:
        texts = texts_of(config)
        publish(config, {name: texts[name] for name in names}, progress or (lambda _line: None))
    return names


def publish(config: ViewsConfig, texts: Mapping[str, Text], tell: Progress) -> None:
    """Have views published by these definitions; return when they are. Raises OperatorError where that failed.

    `config` has them already: a job is run by it here, if there is none that runs elsewhere.
    """
    command = new_command(texts)
    leave(config, command)
    tell("asking the view job")
    with closing(Commands(config)) as commands:  # opened once the command is there: not to see it means that it is done
        begun, mine = time.monotonic(), False
        while (standing_as := _standing(commands, command)) is not None:
            if standing_as.failed is not None:
                commands.withdraw(command)
                msg = f"the view job could not publish it: {standing_as.failed}"
                others = ", or rebuild the others by themselves: --view NAME for each" if len(texts) > 1 else ""
                raise OperatorError(msg, hint=f"what is published is as it was; correct what it names{others}")
            if standing_as.taken:
                tell("the view job has taken it, and is at work")
            elif not mine and time.monotonic() - begun > TAKEN_S:
                mine = _run_here(config, commands, command, tell)
            time.sleep(_LOOK_S)


def _standing(commands: Commands, command: Command) -> Command | None:
    return next((each for each in commands.standing() if each.key == command.key), None)


def _run_here(config: ViewsConfig, commands: Commands, command: Command, tell: Progress) -> bool:
    """Do it in this process; return False where another one has the state."""
    tell("no view job has answered: running it here")
    try:
        run = run_views(config, once=True, progress=tell)
    except (StateInUseError, FencedError):
        tell("another view job is at work: waiting for it")
        return False
    except CdcError:
        left = _left(config, command)
        if left is None or left.failed is None:  # else the run without it has refused the file, which has it
            commands.withdraw(command)
            raise
        return True
    left = _left(config, command)
    if left is not None and left.failed is None:
        commands.withdraw(command)
        if run.signal is not None:
            end_by(run.signal)
        waits = "a table is being read again" if run.reading else "the topics are not complete yet"
        why = next((run.stopped[name] for name in command.views if name in run.stopped), waits)
        raise OperatorError(
            f"the view job could not publish it yet: {why}",
            hint="what is published is as it was; rebuild again when that is over: cdc view status VIEWS.yaml",
        )
    return True


def _left(config: ViewsConfig, command: Command) -> Command | None:
    with closing(Commands(config)) as now:  # nobody has read the other one meanwhile
        return _standing(now, command)


def _wanted(config: ViewsConfig, state: State, only: Collection[str], *, rollback: bool) -> dict[str, Text]:
    known = published(state)
    for name in only:
        if name not in config.views:
            hint = did_you_mean(name, config.views, f"views of this file: {', '.join(config.views)}")
            raise ConfigError(f"--view {name}: there is no such view", hint=hint)
        if name not in known:
            msg = f"view {name}: nothing is published of it yet"
            raise OperatorError(msg, hint="run it: cdc view run VIEWS.yaml")
    if not rollback:
        texts, asked = texts_of(config), _asked(config)
        edited = changed(config, state).keys() | {
            name for name in known.keys() & asked.keys() & texts.keys() if not same(asked[name], texts[name])
        }
        return {name: texts[name] for name in only or texts if only or name in edited}
    if not only:
        raise ConfigError("--rollback needs --view", hint="say which view goes back: --view NAME --rollback")
    return {name: _before(name, known[name]) for name in only}


def _asked(config: ViewsConfig) -> dict[str, Text]:
    """Return by view the definitions of commands that stand, as a killed rebuild leaves one: the next start does it."""
    return {name: text for command in waiting(config) for name, text in command.views.items()}


def _before(name: str, known: Definition) -> Text:
    if known.before is None:
        msg = f"view {name}: it is of generation {known.generation}, and there is none before"
        raise OperatorError(msg, hint="edit its definition in VIEWS.yaml, then cdc view rebuild VIEWS.yaml")
    return known.before


def _going(config: ViewsConfig, state: State, texts: Mapping[str, Text]) -> ViewsConfig:
    """Return the file with the definitions that are asked for, and else those that are published."""
    others = {name: known.text for name, known in changed(config, state).items()}
    return with_texts(config, {**others, **texts})
