#!/usr/bin/env bash
# A real Slurm cluster on one machine, for tests: slurmctld, slurmd, slurmdbd, MariaDB and munge from Debian packages.
usage() {
    cat <<'END'
usage: slurm_cluster.sh start [options]   start a cluster (one that runs is stopped first); returns when all nodes are idle
       slurm_cluster.sh stop              cancel its jobs, end its daemons and remove all that it made, its logs excepted
       slurm_cluster.sh status            which daemons run, and sinfo; exits with 1 unless all run
       slurm_cluster.sh node crash nodeN  cut the node's network and kill slurmd and all that runs under it: a power cut
       slurm_cluster.sh node kill nodeN   kill slurmd alone; its jobs go on
       slurm_cluster.sh node stop nodeN   end slurmd in order; its jobs go on
       slurm_cluster.sh node start nodeN  start slurmd again after one of these
       slurm_cluster.sh node down|up nodeN                  set the node down, or in service again, with scontrol
       slurm_cluster.sh daemon stop|start slurmctld|slurmdbd   a controller or an accounting that is away; state is kept
options of start:
  --nodes N            nodes, node1 to nodeN (default 3)
  --network KIND       namespaces: each node has its own network and hostname (default)
                       ports: all nodes share the machine's loopback and hostname; needs no privilege over networks
  --cpus C             CPUs that a node declares (default 4)
  --memory MB          memory that a node declares; booked, not enforced (default 8000)
  --gpus G             pretend GPUs per node: CUDA_VISIBLE_DEVICES is set, nothing is behind it (default 0)
  --accounting yes|no  slurmdbd on a MariaDB of its own, for sacct (default yes)
  --max-array-size N   Slurm's MaxArraySize (default 1001)
  --root DIR           state and logs (default /var/lib/detsweep-slurm)
  --timeout S          longest wait for each step of the start (default 60)
Exits with 1 when something failed and with 2 when nothing was tried.
END
}
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
conf=/etc/slurm
mark="# Written by slurm_cluster.sh of detsweep; state in"
root=
nodes=3 network=namespaces cpus=4 memory=8000 gpus=0 accounting=yes max_array_size=1001 timeout=60

# Slurm's programs must ask this cluster, whatever the caller's shell is set up for.
unset "${!SLURM_@}" "${!SBATCH_@}" "${!SACCT_@}" "${!SQUEUE_@}" "${!SINFO_@}"
export SLURM_CONF=$conf/slurm.conf

say() {
    echo "slurm_cluster: $*"
}

reported=
fail() {
    reported=yes
    echo "slurm_cluster: $*" >&2
    exit 1
}

refuse() {
    reported=yes
    echo "slurm_cluster: $*" >&2
    exit 2
}

# shellcheck source=scripts/slurm/processes.sh
. "$here/slurm/processes.sh"
# shellcheck source=scripts/slurm/machine.sh
. "$here/slurm/machine.sh"
# shellcheck source=scripts/slurm/configuration.sh
. "$here/slurm/configuration.sh"

now() {
    date +%s%N
}

since() { # START: seconds with one decimal
    awk -v from="$1" -v to="$(now)" 'BEGIN { printf "%.1f s", (to - from) / 1e9 }'
}

# ---- options

read_options() {
    local value
    while [ $# -gt 0 ]; do
        [ $# -ge 2 ] || refuse "$1 needs a value (see --help)"
        value=$2
        case $1 in
            --root) root=$value ;;
            --network) network=$value ;;
            --accounting) accounting=$value ;;
            --nodes) nodes=$(number "$1" "$value" 1 200) || exit 2 ;;
            --cpus) cpus=$(number "$1" "$value" 1 1024) || exit 2 ;;
            --memory) memory=$(number "$1" "$value" 1 99999999) || exit 2 ;;
            --gpus) gpus=$(number "$1" "$value" 0 64) || exit 2 ;;
            --max-array-size) max_array_size=$(number "$1" "$value" 2 4000001) || exit 2 ;;
            --timeout) timeout=$(number "$1" "$value" 1 3600) || exit 2 ;;
            *) refuse "unknown option $1 (see --help)" ;;
        esac
        shift 2
    done
    [[ $network = namespaces || $network = ports ]] || refuse "--network is namespaces or ports, not $network"
    [[ $accounting = yes || $accounting = no ]] || refuse "--accounting is yes or no, not $accounting"
}

number() { # OPTION VALUE LEAST MOST
    if [[ $2 =~ ^[0-9]{1,8}$ ]] && ((10#$2 >= $3 && 10#$2 <= $4)); then
        echo $((10#$2))
    else
        refuse "$1 takes a number from $3 to $4, not $2"
    fi
}

choose_root() { # DIR: the state of this run; paths of sockets and of Slurm's %n patterns have limits
    root=$1 run=$1/run log=$1/log
    [[ $root =~ ^/[A-Za-z0-9._/-]{1,70}$ ]] || refuse "--root must be a short absolute path without special characters, not $root"
    # Folders in it will be removed, so it must be ours.
    [ ! -e "$root" ] || [ -e "$root/.detsweep-slurm" ] || [ -z "$(ls -A "$root")" ] ||
        refuse "$root holds files that are not of a cluster of this script: give another --root"
}

# ---- commands

start() {
    local began step wanted_root found
    read_options "$@"
    wanted_root=${root:-/var/lib/detsweep-slurm}
    need_root
    check_configuration
    choose_root "$wanted_root"
    lock
    install_packages
    for found in "$(root_in_configuration)" "$root"; do
        choose_root "${found:-$wanted_root}"
        if something_is_left; then
            say "a cluster is there already: stopping it first"
            clear_away
        fi
    done
    choose_root "$wanted_root"

    exec 8>&2
    trap 'end_of_start' EXIT
    trap 'exit 130' INT TERM HUP
    began=$(now)
    mkdir -p "$root"
    touch "$root/.detsweep-slurm"
    rm -rf "$log"
    mkdir -p "$run" "$log" "$root/state" "$root/spool"
    chmod 755 "$root"
    write_configuration
    find_group
    start_munged
    network_up
    say "munge and network: $(since "$began")"
    if [ "$accounting" = yes ]; then
        step=$(now)
        start_database
        say "MariaDB: $(since "$step")"
        step=$(now)
        start_slurmdbd
        # Its tables must know the cluster before slurmctld registers there.
        sacctmgr -i add cluster detsweep >"$log/sacctmgr.log" 2>&1 || fail "sacctmgr cannot add the cluster: see $log/sacctmgr.log"
        say "slurmdbd: $(since "$step")"
    fi
    step=$(now)
    start_slurmctld
    say "slurmctld: $(since "$step")"
    step=$(now)
    start_nodes
    say "slurmd of $nodes nodes: $(since "$step")"
    trap - EXIT
    say "$nodes nodes idle after $(since "$began"); stop them with: $0 stop"
    sinfo -N -p main -o '%N %T %c CPUs, %m MB, %G' | tail -n +2
}

end_of_start() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    # An end without a line of its own is a command that failed under `set -e`, or a signal, which may have come while
    # stderr was that of a command.
    [ -n "$reported" ] || echo "slurm_cluster: the start was cut short: see $log" >&8
    clear_away >"$log/clear.log" 2>&1 || true
    exit "$code"
}

stop() {
    local began
    read_options "$@"
    need_root
    choose_root "${root:-$(root_or_default)}"
    lock
    if ! something_is_left; then
        say "nothing to stop"
        return
    fi
    began=$(now)
    cancel_jobs
    clear_away
    say "stopped after $(since "$began"); its logs stay in $log"
}

status() {
    local name code=0
    read_options "$@"
    choose_root "${root:-$(root_or_default)}"
    if ! compgen -G "$run/*.command" >/dev/null; then
        say "no cluster"
        return 1
    fi
    for name in $(daemons); do
        if running "$name"; then
            echo "$name runs"
        else
            echo "$name does not run"
            code=1
        fi
    done
    running slurmctld && timeout 20 sinfo -N -p main -o '%N %T %c CPUs, %m MB, %G' | tail -n +2
    return $code
}

node() {
    [ $# -ge 2 ] || refuse "node needs a verb and a node's name (see --help)"
    local verb=$1 name=$2
    shift 2
    read_options "$@"
    need_root
    choose_root "${root:-$(root_or_default)}"
    [[ $name = node* && -e $run/$name.command ]] || refuse "no node $name in the cluster"
    case $verb in
        crash | kill | stop)
            running "$name" || fail "slurmd of $name does not run"
            if [ "$verb" = crash ]; then
                # Cut off first: a machine without power does not close its connections.
                link "$name" down
                kill_group "$name" || fail "not all that runs under $name could be found and killed"
            fi
            end "$name" 10 "$([ "$verb" = stop ] || echo KILL)"
            say "$name: slurmd ended ($verb)"
            ;;
        start)
            running "$name" && fail "slurmd of $name runs already"
            link "$name" up
            launch_again "$name"
            sleep 0.2
            running "$name" || fail "slurmd of $name died: see $log/$name.log and $log/$name.out"
            say "$name: slurmd started"
            ;;
        down) timeout 60 scontrol update "NodeName=$name" State=DOWN Reason=slurm_cluster.sh || fail "scontrol cannot set $name down" ;;
        up) timeout 60 scontrol update "NodeName=$name" State=RESUME || fail "scontrol cannot resume $name" ;;
        *) refuse "unknown verb $verb of node (see --help)" ;;
    esac
}

daemon() {
    [ $# -ge 2 ] || refuse "daemon needs stop or start and a daemon's name (see --help)"
    local verb=$1 name=$2
    shift 2
    read_options "$@"
    need_root
    choose_root "${root:-$(root_or_default)}"
    [[ $name = slurmctld || $name = slurmdbd ]] || refuse "daemon takes slurmctld or slurmdbd, not $name"
    [ -e "$run/$name.command" ] || refuse "no $name in the cluster"
    case $verb in
        stop)
            running "$name" || fail "$name does not run"
            end "$name" 30
            say "$name ended"
            ;;
        start)
            running "$name" && fail "$name runs already"
            launch_again "$name"
            wait_for "$name"
            say "$name started"
            ;;
        *) refuse "unknown verb $verb of daemon (see --help)" ;;
    esac
}

action=${1:-}
[ $# = 0 ] || shift
case $action in
    start | stop | status | node | daemon) "$action" "$@" ;;
    --help | -h | help) usage ;;
    *)
        usage >&2
        exit 2
        ;;
esac
