"""Results of other programs, read from their files as they are.

`Reader` and what stands beside it here are what a plug-in for another format is made of.
"""

from tracking.importing.readers import Imported, Reader, load_readers, read_results
from tracking.importing.sources import (
    NotTaken,
    OtherFileError,
    Result,
    count,
    number,
    parse_table,
)
