"""The picture: CPU per request of every target, one panel per workload, as an SVG written by hand."""

import math
import statistics
from xml.sax.saxutils import escape

WIDTH, PANEL, ROW, LABEL, TOP = 920, 440, 20, 104, 44
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-weight: 600 } .value { fill: #555 }
  .bar { fill: #b6bcc6 } .own { fill: #2166ac } .base { fill: #7d8694 } .spread { stroke: #333; stroke-width: 1 }
  .grid { stroke: #e3e5e9 } .back { fill: #fff }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .value { fill: #aaa } .bar { fill: #4a515c } .own { fill: #6aaed6 } .base { fill: #7d8694 }
    .spread { stroke: #ddd } .grid { stroke: #333941 } .back { fill: #14171c }
  }"""


def css_class(name):
    return "own" if name == "homing" else "base" if name == "bare" else "bar"


def panel(workload, by_target, x, y, scale):
    """One workload: a bar per target, lowest CPU first, on a logarithmic scale."""
    rows = sorted(by_target.items(), key=lambda item: statistics.median(s.cpu_us for s in item[1]))
    parts = [f'<text class="title" x="{x}" y="{y + 14}">{escape(workload.title)}</text>']
    for tick in scale.ticks():
        at = x + LABEL + scale.length(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{y + 22}" y2="{y + 24 + ROW * len(rows)}"/>')
    for index, (name, samples) in enumerate(rows):
        middle = y + 24 + ROW * index + ROW / 2
        values = [sample.cpu_us for sample in samples]
        value = statistics.median(values)
        low, high = (x + LABEL + scale.length(edge) for edge in (min(values), max(values)))
        parts += [
            f'<text x="{x + LABEL - 6}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{css_class(name)}" x="{x + LABEL}" y="{middle - 7:.1f}" height="14" '
            f'width="{scale.length(value):.1f}"/>',
            f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>',
            f'<text class="value" x="{high + 5:.1f}" y="{middle + 4:.1f}">{label(value)}</text>',
        ]
    return "\n".join(parts)


def label(us):
    return f"{us / 1e3:.1f} ms" if us >= 1e4 else f"{us:.0f} µs"


class Scale:
    """Logarithmic, from 10 µs."""

    def __init__(self, highest_us):
        self.decades = max(1.0, math.log10(highest_us / 10))
        self.width = PANEL - LABEL - 70

    def length(self, us):
        return max(0.0, math.log10(max(us, 10) / 10)) / self.decades * self.width

    def ticks(self):
        return [10 * 10**power for power in range(math.floor(self.decades) + 1)]


def svg(results):
    proxied = {
        workload: {name: samples for name, samples in by_target.items() if name not in ("direct", "bare-again")}
        for workload, by_target in results.items()
    }
    proxied = {workload: by_target for workload, by_target in proxied.items() if by_target}
    highest = max(sample.cpu_us for by_target in proxied.values() for samples in by_target.values() for sample in samples)
    scale = Scale(highest)
    parts, y = [], TOP
    items = list(proxied.items())
    for pair in (items[at : at + 2] for at in range(0, len(items), 2)):
        parts += [panel(workload, by_target, 10 + at * 460, y, scale) for at, (workload, by_target) in enumerate(pair)]
        y += 52 + ROW * max(len(by_target) for _, by_target in pair)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}">'
    title = "CPU time of the proxy per request (logarithmic; line: lowest to highest round)"
    back = f'<style>{STYLE}</style><rect class="back" width="{WIDTH}" height="{y}"/>'
    return "\n".join([head, back, f'<text class="title" x="10" y="24">{title}</text>', *parts, "</svg>", ""])
