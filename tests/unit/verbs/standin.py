"""A libibverbs and providers for it, compiled as real ones are but without their code; x86-64."""

from __future__ import annotations

from exporter.verbs.code import ops
from exporter.verbs.code.ops import OpsLayout


def layout_of(release: int) -> OpsLayout:
    layout = ops.of_release(release)
    assert layout
    return layout


def vendors(release: int) -> OpsLayout:
    """A layout that no release has: one more member, in the middle."""
    members = sorted([*layout_of(release).offsets, "create_of_vendor"])
    return OpsLayout({name: 8 * index for index, name in enumerate(members)}, 8 * len(members))


def libibverbs(layout: OpsLayout, *, context: int = 320, ignored: str = "") -> str:
    """The verbs_set_ops of a libibverbs for a table. `ignored` is a member that it forgets to copy."""
    words = context // 8
    public = ops.in_context()
    lines = []
    for name, offset in layout.offsets.items():
        if name == ignored:
            continue
        copies = f"private[3 + {offset // 8}] = op;"
        if name in public:
            copies += f" vctx[{words + public[name] // 8}] = op;"
        lines.append(f"  if ((op = ops[{offset // 8}])) {{ {copies} }}")
    body = "\n".join(lines)
    return (
        f"void verbs_set_ops(void **vctx, void **ops) {{\n"
        f"  void **private = vctx[{words - 14}];\n  void *op;\n{body}\n}}\n"
    )


MANDATORY = [
    *("alloc_pd", "dealloc_pd", "reg_mr", "dereg_mr", "create_cq", "destroy_cq", "poll_cq", "query_port"),
    *("create_qp", "query_qp", "modify_qp", "destroy_qp", "post_send", "post_recv"),
]


def provider(layout: OpsLayout, *, tables: dict[str, list[str]] | None = None, calls: str = "") -> str:
    """Return a provider with tables of these operations, each with a function of its own: <table>_<operation>."""
    tables = {"common": [*MANDATORY, "req_notify_cq", "create_qp_ex"]} if tables is None else tables
    source = ["void verbs_set_ops(void *vctx, const void *ops);", "volatile int sink;"]
    for number, (table, members) in enumerate(tables.items()):
        for member in members:
            value = 1000 * number + layout.offsets[member]
            source.append(f"static int {table}_{member}(int a) {{ sink += {value} + a; return sink; }}")
        entries = ", ".join(f"[{layout.offsets[m] // 8}] = (void *){table}_{m}" for m in members)
        source.append(f"static void *const {table}[{layout.size // 8}] = {{ {entries} }};")
    calls = calls or " ".join(f"verbs_set_ops(context, {table}); sink++;" for table in tables)
    source.append(f"int provider_open(void *context, int kind) {{ {calls} return sink; }}")
    return "\n".join(source)
