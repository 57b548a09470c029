# shellcheck shell=bash disable=SC2154
# Sourced by slurm_cluster.sh: what it needs of the machine, and what it changes there: packages, network, /etc/hosts.

subnet=198.51.100 # of RFC 5737, for documentation: never routed
host=$(uname -n)
host=${host%%.*}

need_root() {
    [ "$(id -u)" = 0 ] || refuse "needs root: Slurm's daemons run jobs for their owners and are configured in $conf"
}

lock() { # one start or stop at a time
    exec 9>/run/detsweep-slurm.lock
    flock -w 300 9 || refuse "another slurm_cluster.sh has been at work for five minutes"
}

# Of MariaDB the bare server is enough: no service, no database of the system's own.
packages=(munge:munged slurmctld:slurmctld slurmd:slurmd slurm-client:srun)
packages_of_accounting=(slurmdbd:slurmdbd mariadb-server-core:mariadbd mariadb-server-core:mariadb-install-db mariadb-client-core:mariadb)
packages_of_namespaces=(iproute2:ip)

missing_packages() {
    local wanted=("${packages[@]}") pair
    [ "$accounting" = no ] || wanted+=("${packages_of_accounting[@]}")
    [ "$network" = ports ] || wanted+=("${packages_of_namespaces[@]}")
    for pair in "${wanted[@]}"; do
        command -v "${pair#*:}" >/dev/null || echo "${pair%%:*}"
    done | sort -u
}

install_packages() {
    local missing began policy=/usr/sbin/policy-rc.d messages=/var/log/detsweep-slurm-apt.log
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || refuse "needs these Debian packages, and there is no apt-get: ${missing[*]}"
    began=$(now)
    # The cluster starts every daemon itself: no package may start its own. An existing policy is left as it is.
    if [ ! -e $policy ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod 755 $policy
    fi
    # The lists of packages are fetched only where those at hand do not do.
    apt_install "${missing[@]}" >$messages 2>&1 ||
        { apt-get -o DPkg::Lock::Timeout=300 update && apt_install "${missing[@]}"; } >>$messages 2>&1 ||
        refuse "these Debian packages cannot be installed (see $messages): ${missing[*]}"
    if [ -n "$(trap -p EXIT)" ]; then
        rm -f $policy
        trap - EXIT
    fi
    rm -f $messages
    mapfile -t missing < <(missing_packages)
    [ ${#missing[@]} = 0 ] || refuse "installed, but without the program expected: ${missing[*]}"
    say "packages: $(since "$began")"
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold \
        install -qq -y --no-install-recommends "$@"
}

start_munged() {
    if answers munged >/dev/null 2>&1; then
        say "a munged runs already: using it"
        return
    fi
    install -d -o munge -g munge -m 755 /run/munge
    install -d -o munge -g munge -m 700 /etc/munge /var/lib/munge /var/log/munge
    if [ ! -s /etc/munge/munge.key ]; then
        install -o munge -g munge -m 400 /dev/null /etc/munge/munge.key
        head -c 1024 /dev/urandom >/etc/munge/munge.key
    fi
    rm -f /run/munge/munge.socket.2 /run/munge/munge.socket.2.lock
    launch munged setpriv --reuid=munge --regid=munge --clear-groups munged --foreground
    wait_for munged
}

address() { # NUMBER of the node
    if [ "$network" = ports ]; then echo 127.0.0.1; else echo "$subnet.$((10 + $1))"; fi
}

network_up() {
    local i
    if [ "$network" = namespaces ]; then
        {
            unshare --net --mount --uts true &&
                ip link add detsweep-br0 type bridge &&
                ip addr add "$subnet.1/24" dev detsweep-br0 &&
                ip link set detsweep-br0 up &&
                for ((i = 1; i <= nodes; i++)); do add_namespace "$i" || break; done &&
                [ "$i" -gt "$nodes" ]
        } >"$log/network.log" 2>&1 ||
            refuse "network namespaces cannot be made here ($(tail -n 1 "$log/network.log")): use --network ports"
    fi
    # Programs take a master's address from the list of node names, so these must resolve, here and on the nodes.
    add_to_hosts
}

add_namespace() { # NUMBER; a node has no route to anything but the others and the controller
    local space=detsweep-node$1 outside=detsweep-v$1
    ip netns add "$space" &&
        ip link add "$outside" type veth peer name eth0 netns "$space" &&
        ip link set "$outside" master detsweep-br0 up &&
        ip -n "$space" addr add "$(address "$1")/24" dev eth0 &&
        ip -n "$space" link set eth0 up &&
        ip -n "$space" link set lo up
}

link() { # NODE up|down
    [ ! -e "/run/netns/detsweep-$1" ] || ip link set "detsweep-v${1#node}" "$2"
}

network_down() {
    local space file
    for space in /run/netns/detsweep-node*; do
        [ -e "$space" ] || continue
        # The pair of interfaces lives on for as long as a process does in the namespace, so it goes first.
        ip link del "detsweep-v${space##*/detsweep-node}" 2>/dev/null || true
        ip netns del "${space##*/}" || true
    done
    [ ! -d /sys/class/net/detsweep-br0 ] || ip link del detsweep-br0 || true
    if grep -q '# detsweep-slurm$' /etc/hosts; then
        # In place: in containers the file is often a mount, which cannot be replaced.
        file=$(grep -v '# detsweep-slurm$' /etc/hosts || true)
        printf '%s\n' "$file" >/etc/hosts
    fi
}

node_lines() {
    local i
    for ((i = 1; i <= nodes; i++)); do
        echo "$(address "$i") node$i"
    done
}

add_to_hosts() {
    [ -z "$(tail -c 1 /etc/hosts)" ] || echo >>/etc/hosts
    node_lines | sed 's/$/ # detsweep-slurm/' >>/etc/hosts
    getent hosts "$host" >/dev/null || echo "127.0.0.1 $host # detsweep-slurm" >>/etc/hosts
    [ "$network" = namespaces ] || return 0
    { printf '127.0.0.1 localhost\n%s.1 %s\n' "$subnet" "$host" && node_lines; } >"$run/hosts"
}
