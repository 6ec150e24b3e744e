"""Places for libraries, when all are taken: a user who has more than another gives one back.

So every user gets as many places as there are for each, if not more. The user who takes a place has two fewer than
the one who gives it back: each makes the users more equal, so that none goes back and forth between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from exporter.bpf.attached import Attached
from exporter.bpf.shares import NOBODY, Shares, User

LEAD = 2
"""Places that the user who gives one back has to have more than the one who takes it."""


def to_give_back(candidates: Iterable[Attached], taker: User, shares: Shares) -> Attached | None:
    """Return the library that makes room for one of `taker`; None where nobody has enough more places than that user.

    It is one of the user who has most places: that of the fewest processes, of those the one attached to last. A
    library that processes of others use too is first counted to the one of these users who has fewest.
    """
    held: dict[User, list[Attached]] = defaultdict(list)
    for attached in candidates:
        held[attached.user].append(attached)
    while held:
        giver = max(held, key=shares.places)
        if shares.places(giver) < shares.places(taker) + LEAD:
            return None
        chosen = min(held[giver], key=_worth)
        others = {shares.user(pid) for pid in chosen.users} - {giver, NOBODY}
        heir = min(others, key=shares.places, default=giver)
        if shares.places(giver) < shares.places(heir) + LEAD or not shares.take_place(heir):
            return chosen
        shares.give_place(giver)
        chosen.user = heir
        held[giver].remove(chosen)  # and not to that user's: each is looked at once
        if not held[giver]:
            del held[giver]
    return None


def _worth(attached: Attached) -> tuple[int, int]:
    return len(attached.users), -attached.complete_ns
