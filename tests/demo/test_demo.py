"""The command as a whole, on a small synthetic file."""

import argparse
import random

import pytest
import torch

from blockattn import demo

pytest.importorskip("rich")
pytest.importorskip("matplotlib")


@pytest.fixture
def interactions(tmp_path):
    """40 users who walk through 60 items in order from a random place; a last user has a single item."""
    draw = random.Random(0)
    lines = ["userId,itemId,timestamp"]
    for user in range(40):
        first = draw.randrange(60)
        lines += [f"u{user},i{(first + step) % 60},{step}" for step in range(draw.randrange(3, 50))]
    lines.append("single,i3,5")
    path = tmp_path / "interactions.csv"
    path.write_text("\n".join(lines))
    return path


def run(*options):
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.run(parser.parse_args([str(option) for option in options]))


def table_lines(text):
    """Lines without times, which differ between runs."""
    return [line for line in text.splitlines() if line.startswith("│") and "ms" not in line]


def test_it_prints_the_tables_writes_the_pictures_and_repeats_itself(interactions, tmp_path, capsys):
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    texts = []
    for name in ("one", "two"):
        out = tmp_path / "new" / name
        assert run("--interactions", interactions, "--out", out, "--quick", "--device", "cpu", "--block-size", 16) == 0
        assert sorted(path.name for path in out.iterdir()) == ["attention.png", "loss.png"]
        texts.append(capsys.readouterr().out)
    assert "41 users, 60 items" in texts[0]
    assert "1 users without history" in texts[0]
    for word in ("HR@10", "NDCG@10", "popularity", "kept for backward", "a training step takes"):
        assert word in texts[0]
    assert table_lines(texts[0]) == table_lines(texts[1])
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_data_without_anyone_to_rank_is_refused(tmp_path, capsys):
    path = tmp_path / "single.csv"
    path.write_text("user,item,timestamp\nu,i,1\n")
    assert run("--interactions", path, "--out", tmp_path / "out", "--quick") == 2
    assert "no user has an item to predict and another one before it" in capsys.readouterr().err


def test_unusable_files_end_with_a_message(tmp_path, capsys):
    assert run("--interactions", tmp_path / "absent.csv", "--out", tmp_path / "out") == 2
    assert "absent.csv" in capsys.readouterr().err


def test_missing_extras_are_named(monkeypatch, capsys):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None if name == "rich" else True)
    assert run() == 2
    assert "rich not installed: pip install 'blockattn[demo]'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--epochs", "--threads"])
def test_counts_must_be_positive(option, capsys):
    with pytest.raises(SystemExit):
        run(option, "0")
    assert "must be 1 or more" in capsys.readouterr().err
