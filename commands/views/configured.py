"""A command's options for one configuration, and its check before anything slow is imported."""

from __future__ import annotations

from collections.abc import Callable

import click

from bench.config import RunConfig, parse_config


def one_option_per_field(function: Callable[..., int]) -> Callable[..., int]:
    """Options named like RunConfig's fields, so that the two cannot drift apart."""
    for name, field in reversed(RunConfig.model_fields.items()):
        default = str(field.default)
        function = click.option(
            f"--{name.replace('_', '-')}",
            name,
            default=default.lower() if isinstance(field.default, bool) else default,
            show_default=True,
            metavar="VALUE",
            help=field.description,
        )(function)
    return function


def checked_config(values: dict[str, str]) -> RunConfig:
    """Return the configuration of the options' values; all that is wrong in one `UserError`."""
    config = parse_config(values)
    if config.reads_images:
        from bench.training.dataset import check_image_folder

        check_image_folder(config.data)
    return config
