#!/usr/bin/env bash
# Writes deploy/kubernetes/ from the chart: its resources with default values, and the rules as a PrometheusRule.
# Usage: manifests.sh FOLDER. The variable CHART sets another folder of the chart.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?usage: manifests.sh FOLDER}

# render FILE TEMPLATE... [-- OPTION...]: some templates of the chart.
render() {
    local file=$1 options=()
    shift
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        options+=(--show-only "templates/$1.yaml")
        shift
    done
    [ $# -eq 0 ] || shift
    {
        echo "# Written by \`make manifests\` from deploy/helm/accel-exporter; do not edit."
        .venv/bin/helm template accel-exporter "${CHART:-deploy/helm/accel-exporter}" --namespace accel-exporter "${options[@]}" "$@" \
            2> >(grep -v 'found symbolic link' >&2) | sed '/^# Source:/d'
    } >"$folder/$file"
}

render accel-exporter.yaml serviceaccount daemonset service
render monitoring.yaml monitors -- --set podMonitor.enabled=true
render rules.yaml prometheusrule -- --set prometheusRule.enabled=true
