# shellcheck shell=bash
# The root of a bare machine with git, make and ca-certificates, and running commands in it. Sourced by check.sh.

. deploy/debian.sh

# new_root RELEASE: sets fresh_root to the folder of a new one. Fails, with the reason in $fresh_work/log, when it cannot.
new_root() {
    local release=$1
    make_root "$release" "$fresh_work/log" || return 1
    fresh_root=$fresh_work/$release
    mkdir -p "$fresh_root" "$fresh_work/archives"
    tar -C "$fresh_root" -xf "$root_base"
    # Hard links: two checks at a time do not wait for each other's lock. What is new goes back when this ends.
    cp -ln "$root_cache"/archives/*.deb /var/cache/apt/archives/*.deb "$fresh_work/archives/" 2>/dev/null
    echo force-unsafe-io >"$fresh_root/etc/dpkg/dpkg.cfg.d/container" # as images of Debian have it
    as_this_machine "$release"
    trust_as_this_machine # for the mirror
    inside / bash -c 'apt-get update -qq && apt-get install --yes -qq --no-install-recommends ca-certificates git make' \
        >"$fresh_work/log" 2>&1 || return 1
    trust_as_this_machine # for pip: installing ca-certificates has made its own
}

trust_as_this_machine() {
    mkdir -p "$fresh_root/etc/ssl/certs"
    cp /etc/ssl/certs/ca-certificates.crt "$fresh_root/etc/ssl/certs/" 2>/dev/null || true
}

# Names, mirrors and pip's settings in the root are those that this machine has.
as_this_machine() {
    local release=$1 sources settings
    cp -L /etc/resolv.conf /etc/hosts "$fresh_root/etc/"
    apt-config dump | grep '^Acquire::' >"$fresh_root/etc/apt/apt.conf.d/90this-machine" || true
    sources=$(apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' \
        'Origin: Debian' 2>/dev/null | sort -u | awk -v release="$release" '$3 ~ "^" release "(-|$)"')
    [ -z "$sources" ] || echo "$sources" >"$fresh_root/etc/apt/sources.list"
    for settings in /etc/pip.conf /etc/xdg/pip "$HOME/.config/pip" "$HOME/.pip"; do
        [ -e "$settings" ] || continue
        mkdir -p "$fresh_root${settings%/*}"
        cp -RL "$settings" "$fresh_root${settings%/*}/"
    done
    if [ "$HOME" != /root ] && [ -d "$HOME/.config/pip" ]; then
        mkdir -p "$fresh_root/root/.config" && cp -RL "$HOME/.config/pip" "$fresh_root/root/.config/"
    fi
}

# Prints the folders and files of this machine that pip's settings name: wheels, indexes. What an index links to lies
# beside it.
pip_paths() {
    { cat /etc/pip.conf /etc/xdg/pip/* "$HOME"/.config/pip/* "$HOME"/.pip/*; env | grep ^PIP_; } 2>/dev/null |
        grep -oE '(file://)?(/[A-Za-z0-9._+-]+)+' | while IFS= read -r path; do
        case $path in
        file://*) path=${path#file://} && path=${path%/*} ;;
        /etc/*) continue ;; # copied
        esac
        [ "$path" = / ] || [ ! -e "$path" ] || echo "$path"
    done | sort -u
}

# inside FOLDER COMMAND...: runs it in the root as a login of root would, and nothing of this machine's environment but
# what pip and downloads need. FRESH_NET=none: without a network. FRESH_AS: another user. FRESH_BARE: PATH is all there is.
inside() {
    local folder=$1 isolation=(--mount --propagation private) variables=() user=()
    shift
    [ "${FRESH_NET:-}" != none ] || isolation+=(--net)
    [ -n "${FRESH_BARE:-}" ] || variables=(HOME="/root" LANG=C.UTF-8 TERM=dumb)
    if [ -n "${FRESH_AS:-}" ]; then
        variables=(HOME="/home/$FRESH_AS" LANG=C.UTF-8 TERM=dumb)
        user=(setpriv --reuid="$FRESH_AS" --regid="$FRESH_AS" --init-groups --inh-caps=-all)
    fi
    while IFS= read -r variable; do
        variables+=("$variable")
    done < <(env | grep -E '^(PIP_|(https?|no|all|HTTPS?|NO|ALL)_(proxy|PROXY)=|REQUIRE_)')
    FRESH_ARCHIVES=$fresh_work/archives FRESH_PIP=$fresh_pip FRESH_SHARED=$(pip_paths) \
        unshare "${isolation[@]}" deploy/fresh/enter.sh "$fresh_root" "$folder" \
        "${user[@]}" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${variables[@]}" "$@" </dev/null
}

# clone FOLDER [OWNER]: this checkout as `git clone` makes it there, with what is not committed yet.
clone() {
    local to=$fresh_root$1
    git clone --quiet --no-hardlinks "$PWD" "$to"
    git ls-files -z --deleted | (cd "$to" && xargs -0 --no-run-if-empty rm -f --)
    git ls-files -z --modified --others --exclude-standard --deduplicate |
        while IFS= read -r -d '' file; do [ ! -e "$file" ] || cp -P --parents "$file" "$to/"; done
    [ -z "${2:-}" ] || inside / chown -R "$2:" "$1"
}
