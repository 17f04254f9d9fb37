"""Damage to whole files: a few changes, most of them small, so that much of a file stays whole."""

from hypothesis import strategies as st

OPERATIONS = ("insert", "delete", "replace", "copy", "cut", "swap", "digit")
#: Each change: what, where (0 to 1), of how many bytes, and a number that chooses a token.
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([0, 1, 2, 5, 30, 200]),
        st.integers(0, 10**6),
    ),
    max_size=6,
)


def damaged(content, tokens, changes):
    """`content` after `changes`, into which some of `tokens` are put."""
    for operation, where, much, number in changes:
        at = int(where * len(content))
        end = min(len(content), at + much)
        head, piece, tail = content[:at], content[at:end], content[end:]
        token = tokens[number % len(tokens)]
        lines = content.split(b"\n")
        one, other = int(where * len(lines)), much % len(lines)
        lines[one], lines[other] = lines[other], lines[one]
        content = {
            "insert": head + token + piece + tail,
            "delete": head + tail,
            "replace": head + token + tail,
            "copy": head + piece + piece + tail,
            "cut": head,
            "swap": b"\n".join(lines),
            "digit": head + str(number % 10).encode() + content[at + 1 :],
        }[operation]
    return content
