#!/usr/bin/env bash
# Writes deploy/image/requirements.txt: the newest versions of what the image holds, with the hashes of all their files.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pip-tools
# What builds the package is in the list too: pip would fetch it without a hash.
python3 - >"$work/requirements.in" <<'END'
import tomllib

with open("pyproject.toml", "rb") as file:
    given = tomllib.load(file)
project = given["project"]
print(*given["build-system"]["requires"], *project["dependencies"], *project["optional-dependencies"]["otlp"], sep="\n")
END
"$work/venv/bin/pip-compile" --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
    --output-file "$work/requirements.txt" "$work/requirements.in"
{
    echo "# Written by \`make lock\` from pyproject.toml; do not edit. The image holds these and nothing else of Python."
    cat "$work/requirements.txt"
} >deploy/image/requirements.txt
