"""What is told of a provider's functions."""

from __future__ import annotations

from exporter.bpf.elf import Function
from exporter.verbs.doctor import says
from exporter.verbs.providers import Found

ONE = (Function("f", 1, 1, 1, 0),)


def test_a_provider_that_is_found_whole() -> None:
    """Its functions are listed, how many versions there are, and nothing is to be done."""
    found = Found({"post_send": ONE, "post_recv": ONE, "poll_cq": ONE * 2}, {})
    assert (True, "libx.so: found post_send, post_recv, poll_cq (2 versions)", "") == says("libx.so", found)


def test_a_control_function_elsewhere_leaves_it_whole() -> None:
    """A function that is another library's is told, but the data path is there."""
    found = Found(
        {"post_send": ONE, "post_recv": ONE, "poll_cq": ONE}, {"req_notify_cq": "It is y of another library."}
    )
    whole, text, advice = says("libx.so", found)
    assert (True, "") == (whole, advice)
    assert text.endswith("; not req_notify_cq: it is y of another library")


def test_a_provider_that_is_refused() -> None:
    """Each reason is told once with what it concerns, and what helps."""
    found = Found({}, {"post_send": "It is unclear.", "poll_cq": "It is unclear."})
    whole, text, advice = says("libx.so", found)
    assert not whole
    assert "libx.so: no function is certain; not post_send, poll_cq: it is unclear" == text
    assert "restart" in advice
