"""Published models are downloaded whole or not at all, and their names stand for their files. No test needs a network:
the hosts are servers in this process."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import ase
import numpy as np
import pytest
from children import python

import mdops
from mdops.calculator import MDOps
from mdops.cli import main
from mdops.deepmd import DeepPot
from mdops.errors import DownloadError, HeadError, InputError, ModelFileError
from mdops.files import download, published
from mdops.files.download import fetch, is_whole
from mdops.files.published import PUBLISHED, Published, find_model_file, published_path
from mdops.io import read_model
from mdops.learn import parse_config

DATA = Path(__file__).parents[1] / "data"
SEVERAL, ONE = DATA / "heads" / "several.pt", DATA / "heads" / "one.pth"
CONTENT = np.random.default_rng(0).bytes(2_500_000)
NAME = "DPA-3.1-3M"
PATH = f"/{NAME}/resolve/main/file.pt"


class Handler(BaseHTTPRequestHandler):
    """Gives the file of `host` as it says."""

    def __init__(self, host, *given):
        self.host = host
        super().__init__(*given)

    def do_GET(self):
        host = self.host
        host.asked.append((self.path, self.headers["User-Agent"]))
        if host.status != 200 or self.path != PATH:
            self.send_error(host.status if host.status != 200 else 404)
            return
        begin = self.headers["Range"] if host.goes_on else None
        begin = int(begin.removeprefix("bytes=").removesuffix("-")) if begin else 0
        host.begun.append(begin)
        if begin >= len(host.content):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        if begin:
            place = begin if host.tells_place else 0
            self.send_header("Content-Range", f"bytes {place}-{len(host.content) - 1}/{len(host.content)}")
        if host.tells_size:
            self.send_header("Content-Length", str(len(host.content) - begin))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(host.content[begin : host.stops_after])
            if host.stalls is not None:
                self.wfile.flush()
                host.began.set()
                host.stalls.wait(60)

    def log_message(self, *_):
        pass


@pytest.fixture
def hosts(monkeypatch, tmp_path):
    """Two hosts, and a cache that is not there yet."""
    servers, found = [], []
    for _ in range(2):
        host = SimpleNamespace(
            status=200, content=CONTENT, stops_after=None, tells_size=True, asked=[], stalls=None,
            began=threading.Event(), goes_on=True, tells_place=True, begun=[],
        )  # fmt: skip
        server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, host))
        host.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
        found.append(host)
    model = Published(NAME, "file.pt", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(published.PUBLISHED, NAME, model)
    monkeypatch.setattr(published, "HOSTS", tuple((host.address, "main") for host in found))
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    yield found
    for host, server in zip(found, servers, strict=True):
        if host.stalls is not None:
            host.stalls.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def cached(monkeypatch, tmp_path):
    """Puts a file into the cache as that of the model."""

    def put(source):
        monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "cache"))
        path = published_path(NAME)
        path.parent.mkdir(parents=True, exist_ok=True)
        return shutil.copy(source, path)

    monkeypatch.chdir(tmp_path)
    return put


def test_the_table_has_names_files_and_digests():
    assert len(PUBLISHED) == 10 and len({name.lower() for name in PUBLISHED}) == 10
    assert len({model.digest for model in PUBLISHED.values()}) == 10
    for name, model in PUBLISHED.items():
        assert re.fullmatch(r"[0-9a-f]{64}", model.digest), name
        assert published.addresses(name) == [
            f"https://huggingface.co/deepmodelingcommunity/{model.repository}/resolve/main/{model.file}",
            f"https://hf-mirror.com/deepmodelingcommunity/{model.repository}/resolve/main/{model.file}",
            f"https://modelscope.cn/models/DeepModelingCommunity/{model.repository}/resolve/master/{model.file}",
        ]


def test_a_download_is_put_into_the_cache_once(hosts, capsys):
    assert main(["download", NAME.lower()]) == 0
    path, shown = published_path(NAME), capsys.readouterr()
    assert path.read_bytes() == CONTENT and os.listdir(path.parent) == [path.name]
    assert f"{path}: {len(CONTENT):,} bytes" in shown.out and f"mdops info {NAME}" in shown.out
    assert "MB 3/3" in shown.err and "MB/s from 127.0.0.1" in shown.err
    assert path.parent.stat().st_mode & 0o777 == path.parents[1].stat().st_mode & 0o777 == 0o700
    assert hosts[0].asked == [(PATH, f"mdops/{version('mdops')}")] and not hosts[1].asked
    assert main(["download", NAME]) == 0
    assert "already there" in capsys.readouterr().out and len(hosts[0].asked) == 1


def test_without_a_name_the_models_are_listed(hosts, capsys):
    assert main(["download"]) == 0
    before = capsys.readouterr().out
    assert [line.split()[0] for line in before.splitlines()[:-1]] == list(PUBLISHED)
    assert "in the cache" not in before and "mdops download NAME" in before
    assert main(["download", NAME]) == 0
    capsys.readouterr()
    assert main(["download"]) == 0
    there = [line for line in capsys.readouterr().out.splitlines() if "in the cache" in line]
    assert len(there) == 1 and there[0].startswith(f"{NAME} ")


def test_an_unknown_name_is_told_the_nearest_and_all(hosts, capsys):
    assert main(["download", "dpa3.1-3m"]) == 2
    shown = capsys.readouterr().err
    assert "no published model 'dpa3.1-3m'; the nearest is 'DPA-3.1-3M'" in shown
    assert all(name in shown for name in PUBLISHED) and not hosts[0].asked


def test_a_file_elsewhere_is_replaced_only_if_told(hosts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.pt").write_bytes(b"mine")
    assert main(["download", NAME, "-o", "mine.pt"]) == 2
    assert "mine.pt exists already; --overwrite replaces it" in capsys.readouterr().err
    assert Path("mine.pt").read_bytes() == b"mine" and not hosts[0].asked
    assert main(["download", NAME, "-o", "mine.pt", "--overwrite"]) == 0
    assert Path("mine.pt").read_bytes() == CONTENT and "mdops info mine.pt" in capsys.readouterr().out
    assert main(["download", NAME, "-o", "mine.pt"]) == 0
    assert len(hosts[0].asked) == 1 and os.listdir() == ["mine.pt"]
    for words, says in (
        (["-o", "mine.pt"], "--output needs the NAME"),
        ([NAME, "-o", "."], "it is a folder, expected a file"),
        ([NAME, "-o", "no/mine.pt"], "there is no folder no to write into"),
    ):
        assert main(["download", *words]) == 2
        assert says in capsys.readouterr().err


def test_a_damaged_file_in_the_cache_is_replaced(hosts):
    path = published_path(NAME)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1])
    assert not is_whole(NAME, path)
    assert main(["download", NAME]) == 0
    assert is_whole(NAME, path)


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503},
        {"content": CONTENT[:-1] + b"x"},
        {"content": CONTENT + b"more"},
        {"stops_after": 1_500_000},
        {"stops_after": 1_500_000, "tells_size": False},
    ],
)
def test_the_second_host_is_asked_if_the_first_fails(hosts, tmp_path, fault):
    vars(hosts[0]).update(fault)
    fetch(NAME, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == CONTENT and os.listdir(tmp_path) == ["model.pt"]
    assert len(hosts[0].asked) == len(hosts[1].asked) == 1


def test_a_file_without_a_known_size_is_taken(hosts, tmp_path):
    hosts[0].tells_size = False
    fetch(NAME, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == CONTENT and not hosts[1].asked


def test_where_all_hosts_fail_the_error_says_why_of_each(hosts, capsys):
    hosts[0].status, hosts[1].content = 404, b"<html>log in</html>"
    assert main(["download", NAME]) == 2
    shown = capsys.readouterr().err
    assert "HTTP status 404, Not Found; 127.0.0.1:" in shown
    assert f"it gives another file (19 bytes, SHA-256 {hashlib.sha256(hosts[1].content).hexdigest()}" in shown
    assert f"download {hosts[0].address}{PATH} on another one, and copy it to {published_path(NAME)}" in shown
    assert os.listdir(published_path(NAME).parent) == []
    hosts[1].content, hosts[1].stops_after = CONTENT, 1_500_000
    assert main(["download", NAME]) == 2
    assert "the connection ended after 1,500,000 of 2,500,000 bytes" in capsys.readouterr().err
    assert os.listdir(published_path(NAME).parent) == [part_of(published_path(NAME)).name]


def test_hosts_that_do_not_answer_are_named(hosts, tmp_path, monkeypatch):
    with socket.socket() as bound:  # nobody listens
        bound.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{bound.getsockname()[1]}"
        unknown = "http://unknown.invalid"
        monkeypatch.setattr(published, "HOSTS", ((closed, "main"), (unknown, "main")))
        ask = socket.getaddrinfo

        def names(host, *given, **options):
            if host == "unknown.invalid":
                raise socket.gaierror(-2, "Name or service not known")
            return ask(host, *given, **options)

        monkeypatch.setattr(socket, "getaddrinfo", names)
        (tmp_path / "model.pt").write_bytes(b"old")
        says = r"127\.0\.0\.1:\d+: Connection refused; unknown\.invalid: Name or service not known\)"
        with pytest.raises(DownloadError, match=says):
            fetch(NAME, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == b"old" and os.listdir(tmp_path) == ["model.pt"]


def test_a_host_that_stalls_is_given_up(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_TIMEOUT", 0.3)
    hosts[0].stops_after, hosts[0].stalls = 1_500_000, threading.Event()
    fetch(NAME, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == CONTENT and len(hosts[1].asked) == 1


def test_what_cannot_be_written_is_said(hosts, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            DownloadError, match=r"model\.pt cannot be written \(No space left on device\).*-o"
        ):
            fetch(NAME, tmp_path / "model.pt")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("MDOPS_CACHE", str(tmp_path / "file"))
    assert main(["download", NAME]) == 2
    assert "models cannot be made" in capsys.readouterr().err


def part_of(path):
    """What a download to this path leaves that ends before its end."""
    return path.with_name(f".{path.name}.{PUBLISHED[NAME].digest[:16]}.part")


def test_an_interrupted_download_goes_on_where_it_ended(hosts, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    path = published_path(NAME)
    with monkeypatch.context() as patch:
        patch.setattr(download.StepProgress, "is_due", interrupt)
        assert main(["download", NAME]) == 130
    assert os.listdir(path.parent) == [part_of(path).name]
    begun = part_of(path).stat().st_size
    assert 0 < begun < len(CONTENT)
    assert main(["download", NAME]) == 0
    assert path.read_bytes() == CONTENT and os.listdir(path.parent) == [path.name]
    assert hosts[0].begun == [0, begun] and not hosts[1].asked


def test_a_killed_download_leaves_no_model_and_the_next_one_goes_on(hosts, tmp_path):
    hosts[0].stops_after, hosts[0].stalls = 1_500_000, threading.Event()
    to = tmp_path / "model.pt"
    code = f"""
from pathlib import Path
from mdops.files import published
from mdops.files.download import fetch
published.PUBLISHED[{NAME!r}] = published.Published(*{tuple(PUBLISHED[NAME])!r})
published.HOSTS = {published.HOSTS!r}
fetch({NAME!r}, Path({str(to)!r}))
"""
    with subprocess.Popen([sys.executable, "-c", code]) as child:  # which need not load PyTorch
        assert hosts[0].began.wait(60)
        child.kill()
    assert not to.exists() and part_of(to).is_file()
    hosts[0].stops_after = None
    hosts[0].stalls.set()
    hosts[0].stalls = None
    fetch(NAME, to)
    assert to.read_bytes() == CONTENT and os.listdir(tmp_path) == ["model.pt"]


def test_the_second_host_goes_on_where_the_first_ended(hosts, tmp_path):
    hosts[0].stops_after = 1_500_000
    fetch(NAME, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == CONTENT and hosts[1].begun == [1_500_000]


@pytest.mark.parametrize(
    ("left", "fault", "begun"),
    [
        (CONTENT[:1_000_000], {}, [1_000_000]),
        (CONTENT[:1_000_000], {"tells_size": False}, [1_000_000]),
        (CONTENT, {}, [len(CONTENT)]),  # it was killed before it was put into place
        (CONTENT[:1_000_000], {"goes_on": False}, [0]),
        (CONTENT[:1_000_000], {"tells_place": False}, [1_000_000, 0]),
        (b"another file", {}, [12, 0]),
        (CONTENT + b"more", {}, [len(CONTENT) + 4, 0]),
        (CONTENT[:-1] + b"x", {}, [len(CONTENT), 0]),
    ],
)
def test_what_a_download_left_is_gone_on_with_if_it_can_be(hosts, tmp_path, left, fault, begun):
    vars(hosts[0]).update(fault)
    to, foreign = tmp_path / "model.pt", tmp_path / ".model.pt.host.7.part"
    part_of(to).write_bytes(left)
    foreign.write_bytes(CONTENT)
    fetch(NAME, to)
    assert to.read_bytes() == CONTENT and os.listdir(tmp_path) == ["model.pt"]
    assert hosts[0].begun == begun and not hosts[1].asked


def test_what_is_no_beginning_does_not_stay(hosts, tmp_path):
    to = tmp_path / "model.pt"
    for host in hosts:
        host.content = b"<html>log in</html>"
    part_of(to).write_bytes(CONTENT[:1_000_000])
    with pytest.raises(DownloadError, match="it gives another file"):
        fetch(NAME, to)
    assert os.listdir(tmp_path) == []
    to.write_bytes(CONTENT)
    part_of(to).write_bytes(CONTENT[:1_000_000])
    fetch(NAME, to)
    assert os.listdir(tmp_path) == ["model.pt"]


def test_of_several_downloads_at_once_one_asks(hosts, tmp_path):
    to, failed = tmp_path / "model.pt", []

    def run():
        try:
            fetch(NAME, to)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and to.read_bytes() == CONTENT and os.listdir(tmp_path) == ["model.pt"]
    assert len(hosts[0].asked) == 1


def test_a_name_stands_for_the_file_in_the_cache(cached):
    path = cached(SEVERAL)
    for word in (NAME, NAME.lower(), Path(NAME)):
        assert find_model_file(word) == path
        assert read_model(word, "Metals").source["head"] == "Metals"
    with pytest.raises(HeadError, match=rf"{NAME}: {path}: it holds 3 models, the heads Metals"):
        read_model(NAME)


def test_a_file_of_the_name_goes_first(cached):
    cached(SEVERAL)
    Path(NAME).mkdir()
    assert find_model_file(NAME) == published_path(NAME)
    Path(NAME).rmdir()
    shutil.copy(ONE, NAME)
    assert find_model_file(NAME) == Path(NAME)
    assert read_model(NAME).source["format"].startswith("frozen")


def test_a_name_that_is_not_in_the_cache_says_what_fetches_it(cached, monkeypatch, capsys):
    says = f"there is no such file; it is a published model, which `mdops download {NAME}` fetches"
    assert main(["info", NAME.lower()]) == 2
    assert f"mdops: {NAME.lower()}: {says}" in capsys.readouterr().err
    with pytest.raises(ModelFileError, match=r"mine\.pt: there is no such file$"):
        read_model("mine.pt")
    with pytest.raises(ModelFileError, match=r"there is no such file$"):
        read_model(f"folder/{NAME}")
    for variable in ("MDOPS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)

    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(ModelFileError, match=says):
        read_model(NAME)


def test_commands_and_classes_take_a_name(cached, capsys):
    path = cached(SEVERAL)
    with np.load(DATA / "heads" / "answers.npz") as file:
        answers = dict(file)
    symbols = [["Cu", "Al"][t] for t in answers["types"]]
    atoms = ase.Atoms(symbols, answers["positions"][0], cell=answers["cell"][0], pbc=True)
    atoms.write("start.xyz", format="extxyz")
    head = ["--head", "Metals"]
    assert main(["info", NAME]) == 2
    assert "choose one, as --head Metals" in capsys.readouterr().err
    assert main(["info", NAME, *head]) == 0
    assert str(path) in capsys.readouterr().out
    assert main(["convert", NAME, "metals.safetensors", *head]) == 0
    assert main(["md", "start.xyz", "-m", NAME, *head, "-T", "10", "--steps", "2", "-o", "md.xyz"]) == 0
    emt = str(DATA / "training" / "emt")
    Path("frames.csv").touch()
    assert main(["test", "-m", NAME, "-d", emt, *head, "--table", "frames.csv"]) == 0
    assert main(["change-bias", NAME, *head, "--bias-value", "1", "2"]) == 0
    assert Path(f"{NAME}_updated.dp").is_file() and os.listdir(path.parent) == [path.name]
    for energy in (
        mdops.load(NAME, head="Metals", dtype="float64", spline=False).compute(atoms)["energy"],
        MDOps(NAME, head="Metals", dtype="float64", spline=False).get_potential_energy(atoms),
        DeepPot(NAME, head="Metals", spline=False).eval(
            *(answers[k] for k in ("positions", "cell", "types"))
        )[0],
    ):
        np.testing.assert_allclose(np.ravel(energy), answers["Metals/energy"].ravel(), rtol=1e-9)


def test_a_training_begins_with_a_name(cached, capsys):
    path = cached(SEVERAL)
    train = ["train", str(DATA / "training" / "emt"), "--steps", "1", "-o", "run", "--use-pretrain-script"]
    for more in ([], ["--overwrite"]):
        assert main([*train, "--finetune", NAME, "--head", "Metals", *more]) == 0
    assert mdops.load("run/model.safetensors").type_map == ["Cu", "Al"] and path.is_file()


def test_a_teacher_is_named_beside_the_input_or_by_a_published_name(cached):
    tree = {"start": {"structures": "start.xyz"}, "explore": {"temperatures": [300]}}

    def model(name):
        return parse_config({**tree, "teacher": {"type": "mdops", "model": name}}, "inputs").teacher.model

    assert model("mine.pt") == os.path.abspath("inputs/mine.pt") and model(NAME) == NAME
    Path("inputs").mkdir()
    Path("inputs", NAME).touch()
    assert model(NAME) == os.path.abspath(f"inputs/{NAME}")


def test_names_and_downloads_need_no_ops():
    """They work where PyTorch and the library cannot be loaded."""
    code = (
        "import sys; sys.modules['torch'] = None; import mdops.files.download; from mdops.cli import main; "
    )
    done = python("-c", code + "sys.exit(main(['download']))")
    assert done.returncode == 0, done.stderr


def test_unknown_names_are_input_errors():
    with pytest.raises(InputError, match="the nearest is 'DPA3-Omol-Large'"):
        published.require_published("Omol")
