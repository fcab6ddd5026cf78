"""Commands that end with a script, whose own arguments they never see."""

from __future__ import annotations

import click


class ScriptCommand(click.Command):
    """Its command line is cut where the script begins; ``obj`` of the context is the target."""
