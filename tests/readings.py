"""One way to read a file of results in tests."""

from tracking.importing import read_results


def reading(folder, readers=()):
    """Return a function that writes a file in `folder` and reads it, by `readers` too."""

    def read(content=None, name="results.csv", named=None, **given):
        path = folder / name
        if content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        how = {"given": given, "readers": readers, "named": named or {}}
        return read_results(path, campaign="old", **how)

    return read
