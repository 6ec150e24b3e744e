"""Functions of providers, found in files compiled here: certain ones, refused ones, and broken files."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.bpf.elf import Elf, ElfError
from exporter.verbs.code import ops, providers
from exporter.verbs.code.providers import ProviderFunctions, ProviderNames
from tests.unit.verbs import standin

Build = Callable[..., Path]
R44 = standin.layout_of(44)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """build(file name, source, *flags) -> path of a library; the symbol version is in a script beside it."""

    def built(name: str, source: str, *flags: str, abi: int = 34) -> Path:
        folder = tmp_path_factory.mktemp("verbs")
        (folder / "source.c").write_text(source)
        (folder / "versions").write_text(f"IBVERBS_PRIVATE_{abi} {{ global: verbs_set_ops; provider_*; local: *; }};\n")
        library = folder / name
        command = ["gcc", "-shared", "-fPIC", "-O2", "-Wl,--version-script", folder / "versions", "-o", library]
        subprocess.run([*command, folder / "source.c", *flags], check=True)
        return library

    return built


@pytest.fixture(scope="module")
def verbs(build: Build) -> Path:
    return build("libibverbs.so.1.14.44.0", standin.libibverbs(R44))


def look(provider: Path, verbs: Path | None, **names: str) -> ProviderFunctions:
    chosen = ProviderNames(names.get("provider", provider.name), names.get("verbs", verbs.name if verbs else ""))
    with Elf.open(provider) as opened:
        if verbs is None:
            return providers.find(opened, None, chosen)
        with Elf.open(verbs) as other:
            return providers.find(opened, other, chosen)


def named(path: Path, found: ProviderFunctions) -> dict[str, list[str]]:
    """Return the functions found, by the names in the file's symbol table, which the search does not use."""
    with Elf.open(path) as elf:
        names = {function.address: name for name, function in elf.functions(None).items()}
    return {op: [names[function.address] for function in functions] for op, functions in found.functions.items()}


TWO = {"common": [*standin.MANDATORY, "create_cq_ex"], "newer": ["poll_cq"]}


@pytest.mark.parametrize("flags", [(), ("-O0",), ("-Os",), ("-fno-plt",), ("-Wl,-z,now", "-fcf-protection=full")])
def test_all_versions_of_a_function_are_found(build: Build, verbs: Path, flags: tuple[str, ...]) -> None:
    """A provider that sets a second table has two functions for what is in both, however it was compiled."""
    path = build("libmlx5.so.1.24.44.0", standin.provider(R44, tables=TWO), *flags)
    found = look(path, verbs)
    expected = {"common_poll_cq", "newer_poll_cq"}
    assert expected == set(named(path, found)["poll_cq"])
    assert ["common_post_send"] == named(path, found)["post_send"]
    assert ["common_create_cq_ex"] == named(path, found)["create_cq_ex"]
    assert {} == found.refused
    assert "" == found.incomplete


def test_a_stripped_provider_is_the_same(build: Build, verbs: Path) -> None:
    """Neither symbols nor section headers are needed of a provider, nor its release in its name."""
    path = build("librxe-rdmav34.so", standin.provider(R44))
    stripped = shutil.copy(path, path.with_name("stripped.so"))
    subprocess.run(["strip", stripped], check=True)
    content = bytearray(Path(stripped).read_bytes())
    content[0x28:0x30], content[0x3C:0x40] = bytes(8), bytes(4)  # no section headers
    headless = path.with_name("headless.so")
    headless.write_bytes(content)
    expected = look(path, verbs)
    assert "post_send" in expected.functions
    assert expected == look(Path(stripped), verbs) == look(headless, verbs)


def test_packed_relocations_are_read(build: Build, verbs: Path) -> None:
    """A provider linked with RELR has the same functions as one without."""
    path = build("libefa.so.1.2.44.0", standin.provider(R44, tables=TWO), "-Wl,-z,pack-relative-relocs")
    assert "(RELR)" in subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert ["common_post_send"] == named(path, look(path, verbs))["post_send"]


@pytest.mark.parametrize("release", [28, 33, 34, 44, 59, 62, 64, 65])
def test_the_layout_is_read_from_libibverbs(build: Build, release: int) -> None:
    """Whatever the release, and though no name has it, functions are where verbs_set_ops takes them from."""
    library = build("libibverbs.so.1", standin.libibverbs(standin.layout_of(release), context=368))
    path = build("libnew-rdmav34.so", standin.provider(standin.layout_of(release)))
    found = look(path, library)
    assert ["common_post_send"] == named(path, found)["post_send"]
    assert ["common_create_qp_ex"] == named(path, found)["create_qp_ex"]
    assert {} == found.refused


def test_a_vendors_layout_is_read_from_its_libibverbs(build: Build) -> None:
    """The code of a libibverbs with one member more than its release decides; functions left open by it are refused."""
    layout = standin.vendors(44)
    library = build("libibverbs.so.1.14.44.0", standin.libibverbs(layout))
    path = build("libmlx5.so.1.24.44.0", standin.provider(layout, tables=TWO))
    found = look(path, library)
    assert ["common_post_send"] == named(path, found)["post_send"]
    assert {"create_cq_ex"} == set(found.refused)


def test_without_libibverbs_the_release_decides(build: Build) -> None:
    """If only the provider can be read, the release in its name decides the offsets of functions."""
    path = build("libmlx5.so.1.24.44.0", standin.provider(R44))
    assert ["common_post_recv"] == named(path, look(path, None))["post_recv"]


def test_a_libibverbs_of_another_release_is_refused(build: Build) -> None:
    """Two releases that cannot belong together, as of a process with two libibverbs, give nothing."""
    older = build("libibverbs.so.1.14.34.0", standin.libibverbs(standin.layout_of(34)))
    path = build("libmlx5.so.1.24.44.0", standin.provider(R44))
    found = look(path, older)
    assert {} == found.functions
    assert {"The libibverbs of the process is of another release than this provider."} == set(found.refused.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user, which takes root")
def test_a_libibverbs_of_another_user_decides_nothing(build: Build) -> None:
    """Functions of root's provider hold for all processes: no user's libibverbs decides their offsets."""
    library = build("libibverbs.so.1.14.44.0", standin.libibverbs(standin.vendors(44)))
    path = build("libmlx5.so.1.24.44.0", standin.provider(R44))
    unnamed = build("librxe-rdmav34.so", standin.provider(R44))
    os.chown(library, 65534, 65534)
    assert ["common_post_send"] == named(path, look(path, library))["post_send"]
    assert look(unnamed, None) == look(unnamed, library)
    assert ["common_post_send"] == named(unnamed, look(unnamed, library))["post_send"]
    os.chown(unnamed, 65534, 65534)
    assert look(unnamed, None) != look(unnamed, library)  # their own: they decide
    os.chown(library, 0, 0)
    theirs = build("libmlx5.so.1.24.44.0", standin.provider(standin.vendors(44)))
    assert ["common_post_send"] == named(theirs, look(theirs, library))["post_send"]


def test_a_libibverbs_of_another_abi_is_refused(build: Build) -> None:
    """A libibverbs that this provider cannot have been loaded by gives nothing."""
    newer = build("libibverbs.so.1.14.44.0", standin.libibverbs(R44), abi=57)
    imported = build("libverbsversion.so", "int verbs_set_ops(void *a, void *b) { return 0; }")
    path = build("libmlx5.so.1.24.44.0", standin.provider(R44), str(imported))
    found = look(path, newer)
    assert {} == found.functions
    assert {"The libibverbs of the process has another private ABI than this provider needs."} == set(
        found.refused.values()
    )


def test_a_table_chosen_at_run_time_is_refused(build: Build, verbs: Path) -> None:
    """Functions that the provider reads from memory are refused, those it always sets are found; both are reported."""
    control = ["alloc_pd", "dealloc_pd", "reg_mr", "create_cq"]
    calls = "verbs_set_ops(context, common); verbs_set_ops(context, ((void **)context)[kind]);"
    path = build("libhns.so.1.0.44.0", standin.provider(R44, tables={"common": control}, calls=calls))
    found = look(path, verbs)
    assert {"create_cq": ["common_create_cq"]} == named(path, found)
    assert "chosen only when it runs" in found.incomplete
    assert "It is in a table that is chosen only when the provider runs." == found.refused["post_send"]


@pytest.mark.parametrize("choice", ["kind ? common : newer", "common + 0 * kind"])
def test_a_choice_between_tables_is_all_of_them(build: Build, verbs: Path, choice: str) -> None:
    """If a call takes one of several constants, each of them is a table."""
    both = {"common": standin.MANDATORY, "newer": standin.MANDATORY}
    path = build("libqedr.so.1.24.44.0", standin.provider(R44, tables=both, calls=f"verbs_set_ops(context, {choice});"))
    found = look(path, verbs)
    expected = {"common_post_send", "newer_post_send"} if "?" in choice else {"common_post_send"}
    assert expected == set(named(path, found)["post_send"])


def test_a_table_with_data_in_it_is_refused(build: Build, verbs: Path) -> None:
    """A word that is no function shows that this is not the table it is taken for."""
    source = standin.provider(R44).replace("static void *const common[", "static int data;\nstatic void *const common[")
    source = source.replace("{ [", "{ [0] = &data, [", 1)
    found = look(build("libodd.so.1.0.44.0", source), verbs)
    assert {} == found.functions


def test_a_function_of_another_library_is_reported(build: Build, verbs: Path) -> None:
    """A provider may give a function of libibverbs, which is then not one of its own."""
    source = standin.provider(R44).replace("(void *)common_req_notify_cq", "(void *)ibv_cmd_req_notify_cq")
    path = build("librxe.so.1.0.44.0", "int ibv_cmd_req_notify_cq(int a);\n" + source)
    assert {"req_notify_cq": "It is ibv_cmd_req_notify_cq of another library."} == look(path, verbs).refused


def test_what_is_no_provider_is_refused(build: Build, verbs: Path) -> None:
    """A library that never calls verbs_set_ops has no functions, and each is refused."""
    found = look(verbs, verbs)
    assert {} == found.functions
    assert set(providers.OPS) == set(found.refused)


@pytest.mark.parametrize("ignored", ["post_send", "poll_cq"])
def test_a_libibverbs_that_copies_otherwise_is_no_calibration(build: Build, ignored: str) -> None:
    """Code that does not set all functions of a context is not understood, rather than half."""
    library = build("libibverbs.so.1", standin.libibverbs(R44, ignored=ignored))
    with Elf.open(library) as elf, pytest.raises(ElfError):
        ops.calibrate(elf)


@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)), max_size=12))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_broken_files_are_refused_in_time(
    build: Build, verbs: Path, tmp_path: Path, edits: list[tuple[float, bytes]]
) -> None:
    """Whatever bytes a provider or libibverbs has, the search ends soon, without an error of ours."""
    good = tmp_path / "good.so"
    if not good.exists():
        shutil.copy(build("libgood.so.1.0.44.0", standin.provider(R44, tables=TWO)), good)
    for victim in ("provider", "verbs"):
        content = bytearray((good if victim == "provider" else verbs).read_bytes())
        for place, new in edits:
            at = int(place * len(content)) if len(new) % 2 else int(place * 1024)
            content[at : at + len(new)] = new
        broken = tmp_path / "broken.so"
        broken.write_bytes(content)
        began = time.process_time()
        with suppress(ElfError):  # raised when the file is opened
            look(broken if victim == "provider" else good, verbs if victim == "provider" else broken)
        assert time.process_time() - began < 5
