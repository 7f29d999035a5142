"""`blockattn info` and the command line's own errors."""

import pytest
import torch

from backends import HAS_GPU
from blockattn import __version__, cli, dispatch


def test_info_names_versions_and_the_backend_of_each_dtype(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"blockattn {__version__}" in out
    assert torch.__version__ in out
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        assert f"  {dtype}" in out
    if not HAS_GPU:
        assert out.count("torch   D 16 to 256, blocks 16, 32, 64, 128: no kernels for cpu") == 4
        assert "No GPU is visible" in out


def test_info_on_a_gpu_says_why(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Some GPU")
    monkeypatch.setattr(dispatch, "choose", lambda device, dtype: dispatch.Choice("torch", "because"))
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "cuda:0 Some GPU (sm_75)" in out
    assert "  bfloat16  torch   D 16 to 256, blocks 16, 32, 64, 128: because" in out
    assert "float64 is computed on the CPU only" in out


@pytest.mark.parametrize("arguments", [[], ["nothing"]])
def test_an_unknown_command_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert "usage: blockattn" in capsys.readouterr().err
