"""Only what nobody but root can have written is loaded."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exporter.custom import folder
from exporter.custom.folder import FolderError, ProbeSource, RefusedProbe, fingerprint, load

MEANING = "probes: [{tracepoint: 'a:b'}]\nmetrics: [{name: site.x, help: X., type: counter, map: m}]\n"
ME = os.geteuid()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder as it should be: private parents are pytest's own."""
    made = tmp_path / "probes"
    made.mkdir(mode=0o755)
    return made


def put(place: Path, stem: str = "good", code: str = "int x;\n", meaning: str = MEANING) -> None:
    for suffix, text in ((".c", code), (".yaml", meaning)):
        (place / f"{stem}{suffix}").write_text(text)
        (place / f"{stem}{suffix}").chmod(0o644)


def reason(place: Path, owner: int = ME) -> str:
    [refused] = load(place, owner)
    assert isinstance(refused, RefusedProbe), refused
    return refused.reason


def test_a_sound_probe_is_loaded(place: Path) -> None:
    """Both files are read, and the name is that of the files."""
    put(place)
    [source] = load(place, ME)
    assert isinstance(source, ProbeSource)
    assert ("good", "int x;\n") == (source.definition.name, source.text)


def test_other_files_are_passed_over(place: Path) -> None:
    """A README or an editor's backup is no probe."""
    put(place)
    (place / "README.md").write_text("x")
    (place / "good.c~").write_text("x")
    assert 1 == len(load(place, ME))


@pytest.mark.parametrize("suffix", [".c", ".yaml"])
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_can_write_is_refused(place: Path, suffix: str, mode: int) -> None:
    """Group or world may not write: whoever can write the file would run code in the kernel."""
    put(place)
    (place / f"good{suffix}").chmod(mode)
    assert f"others than root can write good{suffix}" in reason(place)


@pytest.mark.parametrize("suffix", [".c", ".yaml"])
def test_another_owners_file_is_refused(place: Path, suffix: str) -> None:
    """A file of anybody but root is not loaded, whatever its mode."""
    if ME:
        pytest.skip("giving a file away needs root")
    put(place)
    os.chown(place / f"good{suffix}", 65534, 65534)
    assert f"good{suffix} does not belong to root" in reason(place)


def test_links_are_refused(place: Path, tmp_path: Path) -> None:
    """A link could lead to what anybody wrote."""
    put(place)
    (place / "good.c").rename(tmp_path / "elsewhere.c")
    (place / "good.c").symlink_to(tmp_path / "elsewhere.c")
    assert "no link" in reason(place)


def test_what_is_no_file_is_refused_at_once(place: Path) -> None:
    """A pipe of that name does not keep the exporter waiting."""
    put(place)
    (place / "good.c").unlink()
    os.mkfifo(place / "good.c", 0o600)
    assert "is not a file" in reason(place)


def test_a_half_is_refused(place: Path) -> None:
    """A C file without its YAML file, and the other way round."""
    put(place)
    (place / "good.yaml").unlink()
    assert "there is no good.yaml" in reason(place)


@pytest.mark.parametrize("stem", ["Bad", "a-b", "1st", "x" * 49, "a b", "é", "..c"])
def test_names_are_checked(place: Path, stem: str) -> None:
    """Names become labels and messages: small letters, digits and underscores."""
    put(place, stem)
    assert "a probe's name is" in reason(place)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"\xff\xfe", "not UTF-8"), (b"int x;\0", "zero byte"), (b"/" * (folder.MOST_BYTES + 1), "larger than")],
)
def test_contents_are_checked(place: Path, content: bytes, expected: str) -> None:
    """Text of a bounded size, or it is refused."""
    put(place)
    (place / "good.c").write_bytes(content)
    assert expected in reason(place)


def test_a_folder_that_others_can_write_is_refused(place: Path) -> None:
    """Whoever can write the folder can replace its files."""
    put(place)
    place.chmod(0o775)
    with pytest.raises(FolderError, match="others than root can write in .*probes"):
        load(place, ME)


def test_a_parent_that_others_can_write_is_refused(place: Path) -> None:
    """Whoever can write a folder above can replace the folder; unless it is sticky, as /tmp is."""
    put(place)
    place.parent.chmod(0o777)
    with pytest.raises(FolderError, match="chmod go-w"):
        load(place, ME)
    place.parent.chmod(0o1777)
    assert isinstance(load(place, ME)[0], ProbeSource)


def test_a_folder_that_is_not_there(place: Path) -> None:
    """The error is one sentence."""
    with pytest.raises(FolderError, match="absent cannot be read: No such file or directory"):
        load(place / "absent", ME)


def test_so_many_and_no_more(place: Path) -> None:
    """Each is a process: the first 16 by name are loaded, the others refused."""
    for number in range(folder.MOST_PROBES + 2):
        put(place, f"p{number:02}", meaning=MEANING.replace("site.x", f"site.x{number}"))
    found = load(place, ME)
    assert folder.MOST_PROBES == sum(isinstance(it, ProbeSource) for it in found)
    assert ["p16", "p17"] == [it.name for it in found if isinstance(it, RefusedProbe)]


def test_two_probes_with_one_metric(place: Path) -> None:
    """The second one is refused with the name of the first; also where only dots differ."""
    put(place, "a", meaning=MEANING.replace("site.x", "site.x.y"))
    put(place, "b", meaning=MEANING.replace("site.x", "site.x_y"))
    first, second = load(place, ME)
    assert isinstance(first, ProbeSource)
    assert second == RefusedProbe("b", "its metric site_x_y is declared in a.yaml too")


def test_the_fingerprint_changes_with_the_files(place: Path) -> None:
    """Adding, changing and removing a file of a probe are seen; other files are not."""
    seen = [fingerprint(place)]
    put(place)
    seen.append(fingerprint(place))
    (place / "good.c").write_text("int xyz;\n")
    seen.append(fingerprint(place))
    (place / "good.yaml").unlink()
    seen.append(fingerprint(place))
    assert len({*seen}) == len(seen)
    (place / "README").write_text("x")
    assert seen[-1] == fingerprint(place)


def test_the_fingerprint_changes_with_what_was_refused(place: Path) -> None:
    """A reload follows the remedies for a folder, one above it and a file that others can write."""
    put(place)
    for refused in (place / "good.c", place, place.parent):
        mode = refused.stat().st_mode
        refused.chmod(0o777)
        before = fingerprint(place)
        refused.chmod(mode)
        assert before != fingerprint(place)


@pytest.mark.parametrize("name", ["", "good.c"])
@pytest.mark.parametrize(("code", "passing"), [(errno.EMFILE, True), (errno.EACCES, False)])
def test_a_folder_that_cannot_be_read_now(
    monkeypatch: pytest.MonkeyPatch, place: Path, name: str, code: int, passing: bool
) -> None:
    """A shortage is the collector's failure, after which a reload starts the collector again; what lasts is not."""
    put(place)
    opened = os.open

    def refuse(path: str | Path, *arguments: int, **options: int) -> int:
        if path == (name or place.resolve()):
            raise OSError(code, os.strerror(code))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    if passing or not name:
        with pytest.raises(FolderError) as raised:
            load(place, ME)
        assert passing == raised.value.passing
    else:
        assert "good.c cannot be opened (Permission denied)" in reason(place)
