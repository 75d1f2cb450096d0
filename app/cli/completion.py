"""`shellback completion`: a script for the shell."""

from __future__ import annotations

import click

from shellback.cli.shared import Refused


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that makes the shell complete commands, options, conversations and sessions.

    \b
      bash: shellback completion bash > ~/.local/share/bash-completion/completions/shellback
      zsh:  shellback completion zsh > a file in a directory of $fpath, named _shellback
      fish: shellback completion fish > ~/.config/fish/completions/shellback.fish
    or, for this shell alone:
      source <(shellback completion bash)
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from click.shell_completion import get_completion_class

    from shellback.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise Refused(f"this version of click knows no completion for {shell}: install a newer one")
    # Click looks at the version of the bash that is on PATH, if there is one; the script is the same in any case.
    maker = kind(cli, {}, "shellback", "_SHELLBACK_COMPLETE")
    click.echo(maker.source_template % maker.source_vars())
