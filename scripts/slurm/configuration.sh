# shellcheck shell=bash disable=SC2154
# Sourced by slurm_cluster.sh: Slurm's configuration, and how the daemons are started with it.

files_of_conf=(slurm.conf slurmdbd.conf gres.conf cgroup.conf)
controller_port=16817 dbd_port=16819 slurmd_port=17000

check_configuration() { # a Slurm that is not ours is never touched
    local file
    for file in "${files_of_conf[@]}"; do
        [ ! -e "$conf/$file" ] || head -n 1 "$conf/$file" | grep -qF "$mark" ||
            refuse "$conf/$file is there and not of this script: this machine has a Slurm of its own, which is left alone"
    done
}

root_in_configuration() {
    sed -n "1s|^$mark ||p" "$conf/slurm.conf" 2>/dev/null || true
}

root_or_default() {
    local found
    found=$(root_in_configuration)
    echo "${found:-/var/lib/detsweep-slurm}"
}

remove_configuration() {
    local file
    for file in "${files_of_conf[@]}"; do
        if [ -e "$conf/$file" ] && head -n 1 "$conf/$file" | grep -qF "$mark"; then
            rm -f "$conf/$file"
        fi
    done
}

controller_address() {
    if [ "$network" = ports ]; then echo 127.0.0.1; else echo "$subnet.1"; fi
}

write_configuration() {
    mkdir -p "$conf"
    { echo "$mark $root" && slurm_conf; } >"$conf/slurm.conf"
    # slurmd loads a cgroup plugin in any case. Left to find one it may refuse to start; v1 by name touches no cgroup
    # unless a plugin that uses it is configured, and none is.
    printf '%s %s\nCgroupPlugin=cgroup/v1\n' "$mark" "$root" >"$conf/cgroup.conf"
    [ "$gpus" = 0 ] || { echo "$mark $root" && gres_conf; } >"$conf/gres.conf"
    [ "$accounting" = no ] || write_slurmdbd_conf
}

slurm_conf() {
    local i names hostname=$host port=$slurmd_port
    names=$(node_names)
    cat <<END
ClusterName=detsweep
SlurmctldHost=$host($(controller_address))
SlurmctldPort=$controller_port
SlurmdPort=$slurmd_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job may start again only after a credential's lifetime, by default 120 s.
AuthInfo=cred_expire=6
StateSaveLocation=$root/state
SlurmdSpoolDir=$root/spool/%n
SlurmctldPidFile=$run/slurmctld.own
SlurmdPidFile=$run/%n.own
SlurmctldLogFile=$log/slurmctld.log
SlurmdLogFile=$log/%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
# Nothing that needs cgroups, systemd or as many CPUs as are declared.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
# Short intervals: a test waits for each of them.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=2,sched_min_interval=10000
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
PriorityType=priority/basic
KillWait=5
# A lost node is noticed by pings, one each third of SlurmdTimeout, each of which gives up after MessageTimeout.
SlurmdTimeout=6
MessageTimeout=5
SlurmctldTimeout=30
InactiveLimit=0
MinJobAge=300
CompleteWait=0
# Longer than a step waits for a controller that is away: its node would else be drained ("Kill task failed").
UnkillableStepTimeout=180
# A node that was lost returns by itself, one that was set down stays down; with 2 it would not.
ReturnToService=1
JobRequeue=1
MaxArraySize=$max_array_size
# A preempted job gets the signal that it asked for and SIGTERM, and is requeued at the latest after GraceTime.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
# Ids that no earlier cluster has given: result files are often named by a job's id.
FirstJobId=$((($(date +%s) - 1700000000) % 60000000 + 1))
END
    # On loopback only. In namespaces this would bind controller and srun to what the machine's hostname resolves to,
    # where the nodes cannot reach them.
    [ "$network" = namespaces ] || echo "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
    [ "$gpus" = 0 ] || echo "GresTypes=gpu"
    if [ "$accounting" = yes ]; then
        cat <<END
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$(controller_address)
AccountingStoragePort=$dbd_port
AccountingStoreFlags=job_comment
END
    fi
    for ((i = 1; i <= nodes; i++)); do
        if [ "$network" = namespaces ]; then hostname=node$i; else port=$((slurmd_port + i)); fi
        echo "NodeName=node$i NodeHostName=$hostname NodeAddr=$(address "$i") Port=$port CPUs=$cpus Boards=1 SocketsPerBoard=1" \
            "CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$memory$([ "$gpus" = 0 ] || echo " Gres=gpu:$gpus") State=UNKNOWN"
    done
    echo "PartitionName=main Nodes=$names Default=YES MaxTime=INFINITE DefaultTime=10 PriorityTier=1 PreemptMode=REQUEUE GraceTime=10"
    echo "PartitionName=high Nodes=$names MaxTime=INFINITE DefaultTime=10 PriorityTier=10 PreemptMode=OFF"
}

node_names() {
    if [ "$nodes" = 1 ]; then echo node1; else echo "node[1-$nodes]"; fi
}

gres_conf() { # plain files are refused, devices equal to /dev/null are taken
    local i
    mkdir -p "$root/gpus"
    for ((i = 0; i < gpus; i++)); do
        mknod -m 666 "$root/gpus/gpu$i" c 1 3
        echo "NodeName=$(node_names) Name=gpu File=$root/gpus/gpu$i"
    done
}

write_slurmdbd_conf() { # refused by slurmdbd unless it is for its owner only
    install -m 600 /dev/null "$conf/slurmdbd.conf"
    cat >"$conf/slurmdbd.conf" <<END
$mark $root
AuthType=auth/munge
DbdHost=$host
DbdAddr=$(controller_address)
DbdPort=$dbd_port
SlurmUser=root
DebugLevel=verbose
LogFile=$log/slurmdbd.log
PidFile=$run/slurmdbd.own
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
END
}

start_database() { # it has no port, and its socket lies in a folder that root and it alone can enter
    local user=nobody
    getent passwd mysql >/dev/null && user=mysql
    install -d -o $user -m 700 "$root/mysql"
    mariadb-install-db --no-defaults --user=$user --datadir="$root/mysql" --auth-root-authentication-method=normal \
        --skip-test-db >"$log/mariadb-install.log" 2>&1 || fail "MariaDB's tables cannot be made: see $log/mariadb-install.log"
    launch mariadbd setpriv --reuid=$user --regid="$(id -g $user)" --clear-groups mariadbd --no-defaults \
        --datadir="$root/mysql" --socket="$root/mysql/socket" --pid-file="$root/mysql/pid" --skip-networking \
        --innodb-buffer-pool-size=128M --innodb-log-file-size=64M --innodb-lock-wait-timeout=900 \
        --innodb-flush-log-at-trx-commit=0
    wait_for mariadbd
}

start_slurmdbd() {
    launch slurmdbd env MYSQL_UNIX_PORT="$root/mysql/socket" slurmdbd -D
    wait_for slurmdbd
}

start_slurmctld() {
    launch slurmctld slurmctld -D
    wait_for slurmctld
}

start_nodes() {
    local i until name
    for ((i = 1; i <= nodes; i++)); do
        name=node$i
        if [ "$network" = namespaces ]; then
            # Not `ip netns exec`, which mounts another /sys. The node has a hostname and an /etc/hosts of its own.
            launch "$name" nsenter "--net=/run/netns/detsweep-$name" unshare --mount --uts sh -c \
                "mount --bind '$run/hosts' /etc/hosts && hostname $name && exec slurmd -D -N $name"
        else
            launch "$name" slurmd -D -N "$name"
        fi
    done
    until=$((SECONDS + timeout))
    until [ "$(timeout 10 sinfo -h -N -p main -o %T 2>/dev/null | grep -c '^idle$')" = "$nodes" ]; do
        for ((i = 1; i <= nodes; i++)); do
            running "node$i" || fail "slurmd of node$i died: see $log/node$i.out and $log/node$i.log"
        done
        [ $SECONDS -lt $until ] || fail "not all nodes are idle after $timeout s: see $log"
        sleep 0.1
    done
}
