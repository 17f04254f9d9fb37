"""The README of an installed package: on an index no files lie beside it, so it links to none."""

import re
from pathlib import Path

from setuptools import setup

_PICTURE = r"^!\[.*\n\n"
_LINK = r"\[([^\]]+)\]\((?!https?:)[^)]+\)"

text = Path(__file__).with_name("README.md").read_text("utf-8")
text = re.sub(_LINK, r"\1", re.sub(_PICTURE, "", text, flags=re.MULTILINE))
setup(long_description=text, long_description_content_type="text/markdown")
