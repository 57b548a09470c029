# shellcheck shell=bash disable=SC2154
# Sourced by slurm_cluster.sh: daemons are started, remembered and ended here, never by their names.
#
# A daemon NAME (munged, mariadbd, slurmdbd, slurmctld or a node's name) leaves NAME.command, with which it can be
# started again, and NAME.pid: its pid and the kernel's start time, so that a pid used anew is never taken for it.
# Job processes outlive slurmd by design and are handed to init, so a cgroup per daemon holds all that descends from it.

find_group() {
    local base
    group=
    for base in /sys/fs/cgroup/unified /sys/fs/cgroup /sys/fs/cgroup/pids; do
        if [ -w "$base/cgroup.procs" ] && mkdir -p "$base/detsweep-slurm" 2>/dev/null; then
            group=$base/detsweep-slurm
            break
        fi
    done
    echo "$group" >"$run/group"
}

know_group() {
    group=$(cat "$run/group" 2>/dev/null) || group=
    # The state may have been removed under a running cluster.
    [ -n "$group" ] || group=$(compgen -G '/sys/fs/cgroup/*/detsweep-slurm' || compgen -G '/sys/fs/cgroup/detsweep-slurm') || group=
    group=${group%%$'\n'*}
}

process() { # PID FIELD: of /proc/PID/stat, counted from the state, which follows the name in brackets
    awk -v field="$2" '{ sub(/.*\) /, ""); print $field }' "/proc/$1/stat" 2>/dev/null || true
}

running() { # NAME; a zombie, which its parent has not reaped, is none
    local pid began
    { read -r pid began <"$run/$1.pid"; } 2>/dev/null || return 1
    [ "$(process "$pid" 20)" = "$began" ] && [ "$(process "$pid" 1)" != Z ]
}

daemons() { # names, in the order in which they are started
    local file names=()
    for file in "$run"/*.command; do
        [ ! -e "$file" ] || names+=("$(basename "$file" .command)")
    done
    printf '%s\n' "${names[@]}" | awk '{ print (/^node/ ? 5 : index("munged mariadbd slurmdbd slurmctld", $1) / 100) "\t" $1 }' |
        sort -t$'\t' -k1,1g -k2,2V | cut -f2
}

launch() { # NAME COMMAND...
    local name=$1
    shift
    printf '%s\0' "$@" >"$run/$name.command"
    launch_again "$name"
}

launch_again() { # NAME
    local name=$1 command
    mapfile -d '' -t command <"$run/$name.command"
    know_group
    # Programs that only exec, so that the pid of the subshell stays the daemon's own. Nothing of the caller is handed
    # down: not its environment, nor its folder, nor the lock and the copy of stderr.
    (
        [ -z "$group" ] || { mkdir -p "$group/$name" && echo "$BASHPID" >"$group/$name/cgroup.procs"; }
        cd /
        exec 8>&- 9>&- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 setsid "${command[@]}"
    ) >>"$log/$name.out" 2>&1 </dev/null &
    echo "$! $(process $! 20)" >"$run/$name.pid"
}

wait_for() { # NAME: until the daemon answers, or has died, or the time is up
    local name=$1 until=$((SECONDS + timeout))
    until answers "$name" >"$log/wait.log" 2>&1; do
        running "$name" || fail "$name died: see $log/$name.out and $log/$name.log"
        [ $SECONDS -lt $until ] || fail "$name does not answer after $timeout s: see $log/$name.out and $log/$name.log"
        sleep 0.1
    done
}

answers() { # NAME
    case $1 in
        munged) munge -n | unmunge ;;
        mariadbd) timeout 10 mariadb --no-defaults --socket="$root/mysql/socket" -uroot -e 'SELECT 1' ;;
        slurmdbd) timeout 10 sacctmgr -n show cluster ;;
        slurmctld) timeout 10 scontrol ping | grep ' is UP' ;;
    esac
}

end() { # NAME SECONDS [KILL]
    local name=$1 seconds=$2 signal=${3:-TERM} pid i
    while running "$name"; do
        read -r pid _ <"$run/$name.pid"
        kill "-$signal" "$pid" 2>/dev/null || true
        for ((i = 0; i < seconds * 20; i++)); do
            running "$name" || break
            sleep 0.05
        done
        [ "$signal" = TERM ] || break
        signal=KILL
    done
    rm -f "$run/$name.pid"
}

members() { # NAME: pids under the daemon, itself included
    if [ -n "$group" ]; then
        cat "$group/$1/cgroup.procs" 2>/dev/null || true
    elif [ -e "/run/netns/detsweep-$1" ]; then
        ip netns pids "detsweep-$1" 2>/dev/null || true
    fi
}

kill_group() { # NAME; fails where nothing tells what is under the daemon, and where something survives
    local name=$1 pid pids i
    know_group
    [ -n "$group" ] || [ -e "/run/netns/detsweep-$name" ] || return 1
    for ((i = 0; i < 100; i++)); do
        pids=$(members "$name")
        [ -n "$pids" ] || return 0
        for pid in $pids; do
            kill -KILL "$pid" 2>/dev/null || true
        done
        sleep 0.05
    done
    return 1
}

cancel_jobs() { # in order, which gives them SIGTERM and a moment; what is left is killed with its daemon
    local jobs i
    running slurmctld || return 0
    mapfile -t jobs < <(timeout 15 squeue -h -o %A 2>/dev/null | sort -u)
    [ ${#jobs[@]} -gt 0 ] || return 0
    say "cancelling ${#jobs[@]} jobs"
    timeout 20 scancel "${jobs[@]}" 2>/dev/null || true
    for ((i = 0; i < 60; i++)); do
        [ -n "$(timeout 10 squeue -h -o %A 2>/dev/null)" ] || break
        sleep 0.1
    done
}

something_is_left() {
    [ -d "$run" ] || [ -n "$(root_in_configuration)" ] || compgen -G '/run/netns/detsweep-node*' >/dev/null ||
        compgen -G '/sys/fs/cgroup/*/detsweep-slurm' >/dev/null || [ -d /sys/fs/cgroup/detsweep-slurm ] ||
        [ -d /sys/class/net/detsweep-br0 ]
}

clear_away() { # all that a start made except the logs, whatever of it is there
    local name folder
    know_group
    for name in $(daemons | grep '^node' || true); do
        end "$name" 10
    done
    for name in slurmctld slurmdbd mariadbd munged; do
        end "$name" 20
    done
    if [ -n "$group" ]; then
        for folder in "$group"/*/; do
            [ -d "$folder" ] || continue
            kill_group "$(basename "$folder")" || say "something under $folder cannot be killed"
        done
        # A group is busy for a moment after its last process.
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            rmdir "$group"/*/ 2>/dev/null || true
            rmdir "$group" 2>/dev/null && break
            sleep 0.1
        done
    else
        for folder in /run/netns/detsweep-node*; do
            [ ! -e "$folder" ] || kill_group "${folder##*/detsweep-}" || say "something in $folder cannot be killed"
        done
    fi
    network_down
    remove_configuration
    rm -rf "$run" "$root/state" "$root/spool" "$root/mysql" "$root/gpus"
}
