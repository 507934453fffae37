#!/usr/bin/env bash
# A Slurm of one node with several slots, on loopback, for the tests beside this file. As root:
#
#   slurm.sh install     Debian's slurm-wlm and munge, without their daemons being started
#   slurm.sh start DIR   munged, slurmctld and slurmd with their state, keys and logs in DIR; prints what to export
#   slurm.sh stop DIR    ends them, by the numbers of the processes that were started, and what their jobs have left
set -euo pipefail

SLOTS=4
PORT=${SLURM_TEST_PORT:-26817}

install() {
    command -v sbatch >/dev/null && command -v munged >/dev/null && return
    # Without systemd Debian's packages would start their daemons, which listen on the network.
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap "rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge
}

configure() {
    local dir=$1 host
    host=$(hostname -s)
    mkdir -p "$dir"/{munge,state,spool,log}
    # munged wants every folder on the way to its key and socket to belong to root or itself.
    dd if=/dev/urandom of="$dir/munge/key" bs=128 count=1 status=none
    chown -R munge:munge "$dir/munge"
    chmod 711 "$dir/munge"
    chmod 600 "$dir/munge/key"
    cat >"$dir/slurm.conf" <<CONF
ClusterName=unisono-test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$PORT
SlurmdPort=$((PORT + 1))
SrunPortRange=$((PORT + 10))-$((PORT + 99))
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=10
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
MinJobAge=600
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=$SLOTS State=UNKNOWN
PartitionName=low Nodes=$host Default=YES PriorityTier=1 GraceTime=20 MaxTime=INFINITE State=UP
PartitionName=high Nodes=$host PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
CONF
}

start() {
    local dir=$1
    configure "$dir"
    export SLURM_CONF="$dir/slurm.conf"
    setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --num-threads=2 \
        --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
        --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" >/dev/null 2>&1 &
    echo $! >"$dir/pids"
    until [ -S "$dir/munge/socket" ]; do
        kill -0 "$(head -1 "$dir/pids")" || { cat "$dir/munge/log" >&2; exit 1; }
        sleep 0.1
    done
    slurmctld -D >/dev/null 2>&1 &
    echo $! >>"$dir/pids"
    slurmd -D -N "$(hostname -s)" >/dev/null 2>&1 &
    echo $! >>"$dir/pids"
    local left=300
    until sinfo -h -o %T 2>/dev/null | grep -q idle; do
        left=$((left - 1))
        [ $left -gt 0 ] || { tail -20 "$dir"/log/*.log >&2; exit 1; }
        sleep 0.1
    done
    echo "export SLURM_CONF=$SLURM_CONF"
}

stop() {
    local dir=$1 pid
    [ -e "$dir/pids" ] || return 0
    export SLURM_CONF="$dir/slurm.conf"
    scancel --signal=KILL --full --user=root 2>/dev/null || true
    scancel --user=root 2>/dev/null || true
    # Last started, first ended: slurmd ends its jobs' steps while the controller still listens.
    for pid in $(tac "$dir/pids"); do
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 100); do
            kill -0 "$pid" 2>/dev/null || continue 2
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
}

case ${1:-} in
install) install ;;
start | stop) "$1" "${2:?$1 needs a directory}" ;;
*) sed -n '2,6p' "$0"; exit 2 ;;
esac
