"""Random steps: passes over whole values, for the properties of traffic."""

from hypothesis import strategies as st

from bench.cost.passes import Access, Pass, Role

PHASES = ("forward", "backward", "optimizer")


@st.composite
def steps(draw, roles=tuple(Role), phases=PHASES, longest=7):
    """Return passes, the sizes of their values, and the values that outlive them."""
    count = draw(st.integers(1, longest))
    in_order = sorted((draw(st.sampled_from(phases)) for _ in range(count)), key=PHASES.index)
    sizes = [draw(st.integers(1, 100)) for _ in range(draw(st.integers(1, 4)))]
    passes, lasting = [], set()
    for phase in in_order:
        known = st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=3, unique=True)
        reads = draw(known)
        writes = list(range(len(sizes), len(sizes) + draw(st.integers(1, 2))))
        sizes += [draw(st.integers(1, 100)) for _ in writes]
        if phase == "optimizer":
            lasting.update(value for value in writes if draw(st.booleans()))
        passes.append(
            Pass(
                op="op",
                phase=phase,
                role=draw(st.sampled_from(roles)),
                reads=tuple(Access(value, "all", sizes[value]) for value in reads),
                writes=tuple(Access(value, "all", sizes[value]) for value in writes),
                macs=0,
                elementwise_flops=0,
                first_of_call=True,
            )
        )
    return passes, sizes, frozenset(lasting)
