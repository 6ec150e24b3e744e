#!/usr/bin/env bash
# Writes into FOLDER the files that a release publishes besides image and wheel: the site with the runbooks, and the rules, the chart
# and the manifests with links to the site. Usage: release.sh FOLDER. Variables: VERSION is the release, RUNBOOKS the address at which
# its runbooks will be, RUNBOOK_SUFFIX the end of their addresses (.html for the site, .md for the source tree), GRAFANA the address of
# Grafana.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath -m "${1:?usage: release.sh FOLDER}")
version=${VERSION:-} runbooks=${RUNBOOKS:-} suffix=${RUNBOOK_SUFFIX:-.html} grafana=${GRAFANA:-}

refuse() {
    echo "release: $1" >&2
    exit 1
}

[[ $runbooks =~ ^https?://[^[:space:]\"?#]+$ ]] ||
    refuse "RUNBOOKS is not an absolute address: set it to the address of the site's folder runbooks, such as RUNBOOKS=https://docs.example.com/1.0.0/runbooks"
[[ -z $grafana || $grafana =~ ^https?://[^[:space:]\"?#]+$ ]] || refuse "GRAFANA is not an absolute address: set it as in GRAFANA=https://grafana.example.com"
[[ $suffix == .html || $suffix == .md ]] || refuse "RUNBOOK_SUFFIX is neither .html nor .md: set one of them"
grep -qxF "__version__ = \"$version\"" exporter/__init__.py || refuse "VERSION is not that of exporter/__init__.py: change one of them"
for name in version appVersion; do
    grep -qxF "$name: $version" deploy/helm/accel-exporter/Chart.yaml || refuse "VERSION is not the $name of the chart: change Chart.yaml"
done

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cp -rL deploy/helm/accel-exporter "$made/chart"
values=$(<"$made/chart/values.yaml")
# set_value NAME VALUE: changes the default of a value of prometheusRule. The value's name must occur once in the file.
set_value() {
    local line
    line=$(grep -E "^  $1: " <<<"$values")
    [[ $line != *$'\n'* ]]
    values=${values/"$line"/"  $1: \"$2\""}
}
set_value runbooks "$runbooks"
set_value runbookSuffix "$suffix"
[ -z "$grafana" ] || set_value grafana "$grafana"
cat <<<"$values" >"$made/chart/values.yaml"

mkdir -p "$made/out/kubernetes"
cp deploy/kubernetes/{kustomization,namespace}.yaml "$made/out/kubernetes/"
cp -r deploy/alertmanager dashboards "$made/out/"
rm -r "$made/out/dashboards/src"
find "$made/out/dashboards" \( -name '*.py' -o -name __pycache__ \) -prune -exec rm -r {} +
CHART="$made/chart" deploy/manifests.sh "$made/out/kubernetes"
RUNBOOKS='' GRAFANA='' CHART="$made/chart" deploy/rules.sh "$made/out/accel-exporter-rules.yaml" deploy/rules.yaml
.venv/bin/helm package "$made/chart" --destination "$made/out" >/dev/null
NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet --site-dir "$made/out/site"

# Each alert of the plain rules and of the manifests must have a link to an existing page. The chart has the same template.
pages=docs/runbooks
[ "$suffix" = .md ] || pages=$made/out/site/runbooks
for rules in accel-exporter-rules.yaml kubernetes/rules.yaml; do
    links=$(sed -n 's/^ *runbook_url: *//p' "$made/out/$rules")
    [ "$(wc -l <<<"$links")" -eq "$(grep -cE '^ *(- )?alert: ' "$made/out/$rules")" ] || refuse "an alert of $rules has no runbook_url: add its runbook"
    while read -r link; do
        [ -f "$pages/${link#"${runbooks%/}/"}" ] || refuse "$link of $rules has no page: add the runbook to docs/runbooks"
    done <<<"$links"
done

rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
mv "$made/out" "$folder"
(cd "$folder" && find . -type f ! -path './site/*' -printf '%P\n' | sort | xargs -d '\n' sha256sum >"$made/sums" && mv "$made/sums" SHA256SUMS)
echo "$folder: $(cd "$folder" && echo *)"
