"""report.md of a measurement: each bar beside what was measured, and everything else as tables. A figure that was not
measured is never written."""
import re

NOT_MEASURED = "not measured"
RESIDENT, PRODUCT_RATE, HOST_BYTES, PREDICTION = 0.95, 0.50, 14, 0.05


def flat(records):
    """{name: figure} of all steps."""
    return {figure["name"]: figure for record in records for figure in record["figures"]}


def number(value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"


def verdict(met):
    return {True: "met", False: "**missed**", None: NOT_MEASURED}[met]


# ---- Bars: each gives what was measured, as text, and whether that is enough ----


def of_probe(all_figures, part):
    found = {name: figure for name, figure in all_figures.items() if name.startswith(f"probe.{part}.") and "met" in figure}
    text = "; ".join(f"{name.rsplit('.', 1)[1]}: {figure['value']}" for name, figure in found.items())
    return text, all(figure["met"] for figure in found.values()) if found else None


def of_group(all_figures, group, say):
    """All that a step set out to measure; what failed or was not reached is named."""
    expected = all_figures.get(f"{group}.expected", {}).get("value", [])
    found = [all_figures[name] for name in expected if name in all_figures]
    failed = [name for name, figure in all_figures.items() if name.startswith(f"{group}.") and "failed" in figure]
    if not found and not failed:
        return "", None
    text = f"{len(found)} of {len(expected)} measured" + (f", {say(found)}" if found else "")
    if failed:
        text += f"; failed: {', '.join(name.partition('.')[2] for name in failed)}"
    if not found:
        return text, None
    if failed or not all(figure["met"] for figure in found):
        return text, False
    return text, True if len(found) == len(expected) else None


def runs(all_figures):
    """The runs of the part "fast" whose steps were measured, the largest first: [(layers, cap)]."""
    found = [re.fullmatch(r"fast\.(\d+)\.([\w-]+)\.step", name) for name in all_figures]
    return sorted(((int(match[1]), match[2]) for match in found if match), key=lambda run: -run[0])


def of_run(all_figures, figure, is_met, say=number):
    """The largest run decides; the others are told."""
    told, met = [], None
    for layers, cap in runs(all_figures):
        value = all_figures.get(f"fast.{layers}.{cap}.{figure}", {}).get("value")
        if value is not None:
            met = bool(is_met(value)) if met is None else met
            told.append(f"{layers} layers in {cap}: {say(value)}")
    return "; ".join(told), met


def derived(all_figures):
    """The same figures, and what follows from several of them: each run's share of the rate of a large product; its step beside
    eager PyTorch's with the same layers resident; and beside its own tasks and an update of all parameters on the GPU, which
    training with everything resident would have, too."""
    added = {}
    rate = all_figures.get("plain.product.bfloat16", {}).get("value")
    for layers, cap in runs(all_figures):
        run = f"fast.{layers}.{cap}"
        ours = all_figures.get(f"{run}.operations_rate", {}).get("value")
        if rate and ours:
            added[f"{run}.product_share"] = {"name": f"{run}.product_share", "value": ours / rate}
        eager = all_figures.get(f"plain.eager.{layers}.seconds_of_a_sequence", {}).get("value")
        sequences = all_figures.get(f"{run}.sequences", {}).get("value")
        update = all_figures.get("plain.update.seconds_of_a_parameter", {}).get("value")
        resident = all_figures.get(f"{run}.resident_step", {}).get("value")
        if update and resident:
            whole = resident + update * all_figures[f"{run}.parameters"]["value"]
            share = whole / all_figures[f"{run}.step"]["value"]
            added[f"{run}.resident_share_with_update"] = {"name": f"{run}.resident_share_with_update", "value": share}
        if eager and sequences:
            share = eager * sequences / all_figures[f"{run}.step"]["value"]
            added[f"{run}.eager_share"] = {"name": f"{run}.eager_share", "value": share}
    return {**all_figures, **added}


def bars(records):
    """[(bar, measured, met)]; met is None where it was not measured."""
    found = derived(flat(records))
    worst = lambda figures: f"at most {max(figure['value'] for figure in figures):.2g} apart"  # noqa: E731
    same = lambda figures: f"{sum(figure['value'] for figure in figures)} with the same bits"  # noqa: E731
    return [
        ("products slowed at most 3% more by copies of another context", *of_probe(found, "overlap")),
        ("copies at 0.95 of a plain two-stream program or more", *of_probe(found, "copies")),
        ("fp32 losses within 1e-5 of the CPU's", *of_group(found, "models", worst)),
        ("kernels by themselves as near float64 as rounding lets them be", *of_group(found, "kernels", worst)),
        ("1, 2 and 4 emulated devices bit-identical over 20 steps", *of_group(found, "devices", same)),
        ("mixed precision near the CPU's, and bit-identical on two devices", *of_group(found, "bf16", same)),
        ("the same digest after a kill of each process", *of_group(found, "kills", same)),
        ("the same digest with copies=worker, and after its kills", *of_group(found, "copies", same)),
        ("0.95 of resident or more (goal 0.99)", *of_run(found, "resident_share", lambda share: share >= RESIDENT)),
        ("0.50 of the product rate or more, recompute counted",
         *of_run(found, "product_share", lambda share: share >= PRODUCT_RATE)),
        ("swap ratio 1.00", *of_run(found, "swap_ratio", lambda ratio: round(ratio, 2) <= 1)),
        ("host memory at most 14 bytes a parameter beside gradients and stashes",
         *of_run(found, "host_bytes_per_parameter", lambda size: round(size, 1) <= HOST_BYTES)),
        ("predicted within 5% of measured",
         *of_run(found, "prediction_off", lambda off: abs(off) <= PREDICTION, lambda off: f"{off:+.1%}")),
    ]


# ---- The page ----


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return lines + [f"| {' | '.join(str(cell).replace('|', '/').replace(chr(10), ' ') for cell in row)} |" for row in rows]


def figures_table(records, prefix):
    rows = []
    for name, figure in derived(flat(records)).items():
        if not name.startswith(prefix) or name.endswith(".expected"):
            continue
        value = f"failed: {figure['failed'][:200]}" if "failed" in figure else number(figure["value"])
        rows.append((name.removeprefix(prefix), value[:400], figure.get("unit", "")))
    return table(("figure", "value", "unit"), rows) if rows else [NOT_MEASURED]


def page(document):
    records = document["steps"]
    lines = ["# A measurement on a GPU", "", f"{document['date']}, budget {document['budget_s']} s, {document['command']}", ""]
    if document["fake"]:
        lines += ["**On the driver made for tests, which computes by the CPU: no figure here says anything of a GPU.**", ""]
    lines += ["## Bars", "", *table(("bar", "measured", ""), [(bar, text or "-", verdict(met))
                                                              for bar, text, met in bars(records)]), ""]
    lines += ["## Steps", "", *table(("step", "status", "seconds"),
                                     [(r["name"], r["status"], r["seconds"]) for r in records]), ""]
    for title, prefix in (("Machine", "facts."), ("Right: models, GPU against CPU", "models."), ("Right: kernels against float64", "kernels."),
                          ("Right: devices", "devices."),
                          ("Right: kills", "kills."), ("Right: copies=worker", "copies."), ("Right: bf16", "bf16."),
                          ("Right: compute-sanitizer", "sanitizer"),
                          ("Fast: Harmony", "fast."), ("Fast: plain PyTorch", "plain."),
                          ("Fast: exports", "prepare."), ("Probe", "probe.")):
        lines += [f"## {title}", "", *figures_table(records, prefix), ""]
    for record in records:
        if record.get("last_lines"):
            lines += [f"## {record['name']}: {record['status']}", "", "```", record["last_lines"].replace("```", "'''"), "```", ""]
    return "\n".join(lines)
