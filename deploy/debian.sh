# shellcheck shell=bash
# Minimal roots of Debian and Ubuntu, for what has to be tried on a bare machine. Sourced by other scripts.

# Roots and packages are kept here between runs; a root for so many days.
root_cache=${XDG_CACHE_HOME:-${HOME:-$PWD/build}/.cache}/accel-exporter
KEPT_DAYS=30
SCRIPTS=/usr/share/debootstrap/scripts

# Sets root_script, debootstrap's way to make the release, root_mirror, empty for the script's own, and root_components.
find_root_source() {
    root_script=$SCRIPTS/$1 root_mirror=${ROOT_MIRROR:-} root_components=main
    [ -e "$root_script" ] || root_script=$SCRIPTS/gutsy # a release of Ubuntu that is newer than this debootstrap
    if grep -q ubuntu "$root_script"; then
        root_components=main,universe
    elif [ -z "$root_mirror" ]; then
        root_mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 2>/dev/null | head -n 1)
    fi
}

# make_root RELEASE LOG: sets root_base to the tar file of its minimal root, made now unless there is a recent one.
# Fails, with the reason in LOG, where the archive cannot be reached.
make_root() {
    local release=$1 log=$2 folder
    root_base=$root_cache/$release-minbase.tar
    mkdir -p "$root_cache/archives"
    [ -z "$(find "$root_base" -mtime -$KEPT_DAYS 2>/dev/null)" ] || return 0
    find_root_source "$release"
    echo "making a minimal root of $release with debootstrap, which takes a minute or two"
    folder=$(mktemp -d "$root_cache/$release.XXXXXX")
    if ! debootstrap --variant=minbase --components="$root_components" --cache-dir="$root_cache/archives" \
        "$release" "$folder" "$root_mirror" "$root_script" >"$log" 2>&1; then
        rm -rf "$folder"
        return 1
    fi
    chmod 755 "$folder"
    rm -f "$folder"/var/cache/apt/archives/*.deb
    tar -C "$folder" -cf "$root_base.$$" . && mv "$root_base.$$" "$root_base"
    rm -rf "$folder"
}
