"""Steps to test with: random passes, specs of tiny models, and functions that are traced."""

from hypothesis import strategies as st

from bench.cost.step_tracer import StepTracer
from bench.cost.traffic import Access, Pass, Role
from bench.records import StepSpec

PHASES = ("forward", "backward", "optimizer")


@st.composite
def steps(draw, roles=tuple(Role), phases=PHASES, longest=7):
    """Passes over whole values, the sizes of these, and the values that outlive them."""
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
            )
        )
    return passes, sizes, frozenset(lasting)


def tiny(model, **changes):
    """The spec of a model of `tiny_models` on two images of 4x4."""
    options = {"batch_size": 2, "precision": "fp32", "image_size": 4} | changes
    return StepSpec(f"tiny_models:{model}", **options)


class Tracer(StepTracer):
    @property
    def passes(self):
        return self.recorded(frozenset()).passes

    @property
    def sizes_bytes(self):
        return self.values.sizes_bytes


def traced(forward, backward=lambda result: None):
    """What `forward` returns, and the tracer of it and of `backward`, which takes that."""
    tracer = Tracer()
    with tracer:
        tracer.phase = "forward"
        result = forward()
        tracer.phase = "backward"
        backward(result)
    return result, tracer
