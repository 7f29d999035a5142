"""The page holds every row and loads nothing, pictures show what was timed, and a run on a CPU claims nothing of a GPU."""

import dataclasses
import html.parser
import warnings

import pytest

pytest.importorskip("matplotlib")

from blockattn.bench.charts import DPI, PEER_COLOURS, WIDTH, draw_scaling, draw_share, draw_speedup
from blockattn.bench.report import write_report
from blockattn.bench.result import BASELINE, BASELINES, DIRECTIONS, Row, Run, with_speedups

GPU = {"device": "NVIDIA H200", "capability": "sm_90", "driver": "580.0", "commit": "abc123", "torch": "2.11 <nightly>"}
CPU = {"device": "CPU, 2 threads", "commit": "abc123", "torch": "2.11"}
LIMIT = {"forward": 4.46, "backward": 4.18, "trusted": True, "datasheet_tbs": 4.8}
PROVIDERS = {"blockattn-triton": "block_attention(backend='triton')", BASELINE: "aten <flash> & more", "sdpa-cudnn": "math"}
WORKLOADS = {f"W128/{n}": f"B{1152 // n},L2048,fill0.7,H4,Hk4,D128,block64" for n in (1, 4, 16)}
WORKLOADS |= {"a<b>&c": "B7 given,H4,Hk4,D64,block16"}


def timed(workload, spec, provider, direction, ms, limit):
    return Row(
        workload, spec, "attention", provider, direction, "timed", rows=int(spec[1:].split(",")[0].split()[0]) * 1000,
        ms=ms, ms_p20=ms * 0.99, ms_p80=ms * 1.02, samples=50, tbs=1.5, share=1 / ms if limit else None, tflops=60.0,
        peak_bytes=3 << 20 if limit else None, kept_bytes=5 << 20, setup_ms=0.0321,
    )  # fmt: skip


def synthetic(limit=LIMIT, workloads=WORKLOADS, providers=PROVIDERS):
    rows = [
        timed(name, spec, provider, direction, 1.2345 * place, limit)
        for name, spec in workloads.items()
        for place, provider in enumerate(providers, 1)
        for direction in DIRECTIONS
    ]
    return Run(GPU if limit else CPU, limit, providers, tuple(with_speedups(rows)))


def untimed(run, *extra):
    """The run with providers that have no times, in its first workload."""
    first = run.rows[0]
    empty = Row(first.workload, first.spec, first.operation, "", "", "")
    added = [
        dataclasses.replace(empty, provider=provider, direction=direction, status=status, reason=reason)
        for provider, status, reason in extra
        for direction in DIRECTIONS
    ]
    return dataclasses.replace(run, rows=(*run.rows, *added))


UNTIMED = (
    ("flex", "absent", "no <block> of 64 & it takes no others"),
    ("flash4", "wrong", "dq: 0.5 > 0.1"),
    ("blockattn-torch", "failed", "RuntimeError: <script>alert('x')</script>"),
)


def png_size(path):
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


class Page(html.parser.HTMLParser):
    """Tags, what they would load or link to, whether they are closed in order, all text, and that of table cells by line."""

    VOID = ("meta", "img")

    def __init__(self, text):
        super().__init__()
        self.tags, self.addresses, self.lines, self.open, self.text = set(), [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.lines.append([])
        if tag in ("th", "td"):
            self.lines[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if {"th", "td"} & set(self.open):
            self.lines[-1][-1] += data


def test_everything_is_written(tmp_path):
    run = untimed(synthetic(), *UNTIMED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = write_report(run, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["report.html", "share.png", "speedup.png", "scaling.png"]
    for path in paths[1:]:
        width, height = png_size(path)
        assert width == WIDTH * DPI
        assert 300 < height < 2 * width


def test_the_page_holds_all_rows_and_loads_nothing(tmp_path):
    text = write_report(untimed(synthetic(), *UNTIMED), tmp_path)[0].read_text()
    page = Page(text)
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "b"})
    assert "@import" not in text
    assert "url(" not in text
    assert len(page.addresses) == 3
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    for name, spec in WORKLOADS.items():
        name = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        assert f"<h3>{name}</h3>\n<p><code>{spec}</code>" in text
    line = [
        "blockattn-triton",
        "forward",
        "1.234 (1.222–1.259)",
        "1,152,000",
        "1.50",
        "0.810",
        "2.00×",
        "60.0",
        "3.00",
        "5.00",
    ]
    assert page.lines.count([*line, "0.0321"]) == 1
    assert sum(line[:2] == [BASELINE, "both"] for line in page.lines) == len(WORKLOADS)
    for provider, status, reason in UNTIMED:
        assert [provider, "forward, backward, both", f"{status}: {reason}"] in page.lines
    for pair in (*PROVIDERS.items(), *GPU.items()):
        assert list(pair) in page.lines


def test_the_limit_in_words(tmp_path):
    text = write_report(synthetic(), tmp_path)[0].read_text()
    for part in ("4.46 TB/s", "4.18 TB/s", "the datasheet says 4.80 TB/s", "It is trusted", "on one NVIDIA H200"):
        assert part in text
    doubtful = synthetic({"forward": 3.0, "backward": 2.0, "trusted": False, "datasheet_tbs": None})
    text = write_report(doubtful, tmp_path)[0].read_text()
    assert "not trusted" in text
    assert "datasheet" not in text
    assert "NOT TRUSTED" in draw_share(doubtful).get_suptitle()


def test_a_cpu_run_claims_nothing_of_a_gpu(tmp_path):
    run = synthetic(limit=None)
    paths = write_report(run, tmp_path)
    page = Page(paths[0].read_text())
    assert "This ran on a CPU. It says nothing about any GPU" in page.text
    assert page.text.count("GPU") == 1
    assert "H200" not in page.text
    assert not any("share" in line or "peak, MiB" in line for line in page.lines)
    figure = draw_share(run)
    assert figure.get_suptitle() == "Rows per second on CPU, 2 threads"
    assert "rows per second" in figure.axes[0].get_xlabel()
    assert len(paths) == 4


def test_pictures_without_data_are_left_out_and_those_of_before_removed(tmp_path):
    write_report(synthetic(), tmp_path)
    one = synthetic(workloads={"W128": WORKLOADS["W128/1"]}, providers={"blockattn-triton": "ours"})
    assert [path.name for path in write_report(one, tmp_path)] == ["report.html", "share.png"]
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", "share.png"}
    text = (tmp_path / "report.html").read_text()
    assert text.count("<img") == 1
    assert "Speed-up" not in text


def test_a_run_without_times_has_a_page(tmp_path):
    run = untimed(synthetic(), *UNTIMED)
    run = dataclasses.replace(run, rows=tuple(row for row in run.rows if row.status != "timed"))
    assert [path.name for path in write_report(run, tmp_path)] == ["report.html"]
    assert len([line for line in Page((tmp_path / "report.html").read_text()).lines if len(line) == 3]) == len(UNTIMED)
    empty = dataclasses.replace(run, rows=())
    assert [path.name for path in write_report(empty, tmp_path)] == ["report.html"]


def test_marks_stand_at_their_values():
    run = synthetic()
    axes = draw_share(run).axes
    assert [axis.get_title() for axis in axes] == ["forward: 1.0 is 4.46 TB/s", "backward: 1.0 is 4.18 TB/s"]
    marks = [line for line in axes[0].get_lines() if line.get_linestyle() == "None"]
    assert sorted({x for line in marks for x in line.get_xdata()}) == pytest.approx([1 / 1.2345 / n for n in (3, 2, 1)])
    assert all(len(line.get_xdata()) == len(WORKLOADS) for line in marks)
    axes = draw_speedup(run).axes
    assert [axis.get_title() for axis in axes] == list(DIRECTIONS)
    marks = [line for line in axes[2].get_lines() if line.get_linestyle() == "None"]
    assert sorted({x for line in marks for x in line.get_xdata()}) == pytest.approx([2 / 3, 2])


def layers(limit):
    """A run of attention and, in the same workloads, of a layer."""
    run = synthetic(limit)
    names = {"blockattn-triton": "blockattn-layer", BASELINE: BASELINES["layer"]}
    found = [
        dataclasses.replace(row, operation="layer", provider=names.get(row.provider, ""), tbs=None, share=None)
        for row in run.rows
    ]
    return dataclasses.replace(run, rows=(*run.rows, *with_speedups([row for row in found if row.provider])))


@pytest.mark.parametrize("limit", [LIMIT, None])
def test_layers_have_times_and_speedups_but_no_share(tmp_path, limit):
    run = layers(limit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = write_report(run, tmp_path)
    assert [path.name for path in paths] == ["report.html", "share.png", "speedup.png", "scaling.png"]
    lines = Page(paths[0].read_text()).lines
    layer, attention = (next(n for n, line in enumerate(lines) if line[0] == f"blockattn-{x}") for x in ("layer", "triton"))
    assert "TB/s" in lines[attention - 1]
    assert "TB/s" not in lines[layer - 1]
    assert "share" not in lines[layer - 1]
    assert "2.00×" in lines[layer]
    assert len(draw_scaling(run).axes) == 4
    legends = {draw: [x.get_label() for x in draw(run).legends[0].legend_handles] for draw in (draw_share, draw_speedup)}
    assert ("blockattn-layer" in legends[draw_share]) == (limit is None)
    assert "blockattn-layer" in legends[draw_speedup]
    assert BASELINES["layer"] not in legends[draw_speedup]


def test_a_run_of_layers_alone_has_no_picture_of_shares(tmp_path):
    run = layers(LIMIT)
    run = dataclasses.replace(run, rows=tuple(row for row in run.rows if row.operation == "layer"))
    assert [path.name for path in write_report(run, tmp_path)] == ["report.html", "speedup.png", "scaling.png"]


def test_lines_run_over_workloads_that_differ_only_in_the_number_of_sequences():
    axes = draw_scaling(synthetic()).axes
    lines = [line for line in axes[0].get_lines() if len(line.get_xdata()) == 3]
    assert len(axes) == 2
    assert len(lines) == len(PROVIDERS)
    for line in lines:
        assert list(line.get_xdata()) == [72_000, 288_000, 1_152_000]
    two = {name: WORKLOADS[name] for name in ("W128/1", "W128/4", "a<b>&c")}
    assert draw_scaling(synthetic(workloads=two)) is None
    given = {f"file{n}": f"B{n} given,H4,Hk4,D64,block16" for n in (1, 2, 3)}
    assert draw_scaling(synthetic(workloads=given)) is None


def test_a_provider_looks_the_same_in_every_picture():
    providers = dict.fromkeys(["blockattn-triton", "blockattn-torch", BASELINE, *(f"peer{n}" for n in range(20))], "")
    run = synthetic(providers=providers)
    looks = []
    for draw in (draw_share, draw_speedup, draw_scaling):
        handles = draw(run).legends[0].legend_handles
        looks.append({handle.get_label(): (handle.get_color(), handle.get_marker()) for handle in handles})
    assert looks[0] == looks[2]
    assert looks[1] == {name: look for name, look in looks[0].items() if name != BASELINE}
    assert len(set(looks[0].values())) == len(providers)
    ours = {color for name, (color, _) in looks[0].items() if name.startswith("blockattn-")}
    assert len(ours) == 1
    assert ours.isdisjoint(PEER_COLOURS)


def test_names_are_no_formulas_and_long_ones_are_wrapped(tmp_path):
    long = "B1152,H4,Hk4,D128,L2048,fill0.7,block64,long65536,$x_1"
    run = synthetic(workloads={long: long, "$\\undefined$": "B1,H4"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_report(run, tmp_path)
    label = draw_share(run).axes[0].get_yticklabels()[0].get_text()
    assert max(map(len, label.split("\n"))) <= 20
    assert len(label.split("\n")) == 3
