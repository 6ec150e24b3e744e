"""The formats by name, with media type and file name of each."""

from __future__ import annotations

import json

from exporter.nodename import node_name
from exporter.stack_profiles.model import StackProfile
from exporter.views.stack_profiles import collapsed, document, pprof, rows, speedscope


def written(profile: StackProfile, name: str, form: str, value: str = "", by: str = "") -> tuple[bytes, str, str]:
    """Return a profile in a format (pprof, collapsed, speedscope, rows, json), its media type and a file name.

    `value` names a sample type, of formats that have one; empty for the first. `by` is a key of tree.BY, or empty.
    """
    index = [kind for kind, _ in profile.sample_types].index(value) if value else 0
    match form:
        case "pprof":
            return pprof.encode(profile), "application/octet-stream", f"{name}.pb.gz"
        case "collapsed":
            return collapsed.encode(profile, index, by), "text/plain; charset=utf-8", f"{name}.collapsed.txt"
        case "speedscope":
            body = speedscope.encode(profile, f"{name} of {node_name()}", by)
            return body, "application/json", f"{name}.speedscope.json"
        case "rows":
            return json.dumps(rows.rows(profile, index, by)).encode(), "application/json", ""
    return document.encode(profile), "application/json", ""
