#!/usr/bin/env bash
# Writes the rules of alerts/ as a plain file of Prometheus, changed by a file of what the chart has under prometheusRule.
# Usage: rules.sh FILE [VALUES]. RUNBOOKS and GRAFANA are addresses for links, RUNBOOK_SUFFIX is the end of links to runbooks, CHART is
# another folder of the chart.
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:?usage: rules.sh FILE [VALUES]} values=${2:-}
options=()
[ -z "${RUNBOOKS:-}" ] || options+=(--set-string "prometheusRule.runbooks=$RUNBOOKS")
[ -z "${RUNBOOK_SUFFIX:-}" ] || options+=(--set-string "prometheusRule.runbookSuffix=$RUNBOOK_SUFFIX")
[ -z "${GRAFANA:-}" ] || options+=(--set-string "prometheusRule.grafana=$GRAFANA")
made=$(
    { echo 'prometheusRule:' && echo '  enabled: true' && if [ -n "$values" ]; then sed -e '/^---/d' -e 's/^/  /' "$values"; fi; } |
        .venv/bin/helm template accel-exporter "${CHART:-deploy/helm/accel-exporter}" --show-only templates/prometheusrule.yaml \
            --values - "${options[@]}" 2> >(grep -v 'found symbolic link' >&2)
)
mkdir -p "$(dirname "$file")"
{
    echo "# Written by \`make rules\` from alerts/; do not edit."
    sed -n '/^spec:/,$p' <<<"$made" | sed -e 1d -e 's/^  //'
} >"$file"
