"""`host help`."""

import click

from host.cli.invocation import Invocation
from host.cli.main import OPTIONS


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """This page, or a command's; with --json the whole tree."""
    from host.cli.tree import cli

    invocation: Invocation = ctx.obj
    target: click.Command = cli
    context = click.Context(cli, info_name="host")
    for word in words:
        found = target.get_command(context, word) if isinstance(target, click.Group) else None
        if found is None:
            raise click.UsageError(f"There is no command {' '.join(words)!r}.", ctx)
        context = click.Context(found, info_name=word, parent=context)
        target = found
    if invocation.output.as_json:
        invocation.output.document(_tree(target, context))
    else:
        click.echo(target.get_help(context))


def _tree(target: click.Command, context: click.Context) -> dict[str, object]:
    described: dict[str, object] = {
        "name": context.info_name,
        "help": (target.help or "").split("\n")[0],
        "arguments": [
            {"name": p.name, "required": p.required, "many": p.nargs == -1}
            for p in target.params
            if isinstance(p, click.Argument)
        ],
        "options": [
            {"names": [*p.opts, *p.secondary_opts], "flag": p.is_flag, "help": p.help or ""}
            for p in target.params
            if isinstance(p, click.Option)
        ],
    }
    if target.name == "cli":
        described["options"] = [
            {"names": list(names), "flag": names != ("--home",), "help": text} for names, text in OPTIONS.items()
        ]
    if isinstance(target, click.Group):
        children = ((name, target.get_command(context, name)) for name in target.list_commands(context))
        described["commands"] = [
            _tree(child, click.Context(child, info_name=name, parent=context))
            for name, child in children
            if child is not None
        ]
    return described
