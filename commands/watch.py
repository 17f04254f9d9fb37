"""`mlproject watch`: somebody's training script, run as it is, measured and explained."""

from __future__ import annotations

import click

from bench.launcher.device_lock import device_names
from bench.launcher.script import launch_script, script_job, script_of
from bench.records import RunRecord
from bench.records.folders import RecordFolder
from bench.records.journal import OnEvent
from commands.console.options import Count, Seconds, argument, field_option, note, option
from commands.console.recorded import Measuring
from commands.run import run_facts


class Watch(Measuring):
    """Measure a training script as it is, and end it after that.

    COMMAND is what you type to train: mlproject watch -- python train.py --lr 0.1; or torchrun,
    accelerate launch, python -m package. A step is from one optimizer.step() to the next, of
    torch.optim. After the window some steps are profiled and counted. The exit code is the
    script's own where it ends by itself with an error.
    """

    script: tuple[str, ...] = argument(
        required=True, metavar="[--] COMMAND...", type=click.UNPROCESSED
    )
    seconds: Seconds = option("end the measurement, and the script, after this time", 120.0)
    keep_going: bool = option("let the script run to its end after the measurement")
    samples_per_step: Count | None = option(
        "samples of a step and rank [default: the model's first input says it]"
    )
    step_of: str | None = option(
        "a function of the script that is called once a step, where optimizers do not show it; "
        "__main__:train_step for one of the script's own file",
        metavar="MODULE:FUNCTION",
    )
    env: str = field_option("env")
    campaign: str = field_option("campaign")

    @classmethod
    def command(cls) -> click.Command:
        """Leave the options of the script to the script."""
        made = super().command()
        made.allow_interspersed_args = False
        return made

    def run(self) -> int:
        """Run the script, and show what was measured when it has ended."""
        names = ("keep_going", "samples_per_step", "step_of", "env", "campaign")
        asked = {name: vars(self)[name] for name in names}
        job, codes = script_job(*script_of(self.script), self.seconds, **asked), []

        def launch(folder: RecordFolder, on_event: OnEvent) -> RunRecord:
            record, code = launch_script(self.script, job, folder, on_event)
            codes.append(code)
            return record

        end = "runs to its end" if self.keep_going else "is ended after it"
        title = job.config.arch.partition(":")[2]
        note(f"{title} is measured for {self.seconds:g} s at most, and {end}")
        result = self.measured(title, launch, run_facts, device_names("auto"), drawn=False)
        shown = self.show(result)
        return codes[0] or shown
