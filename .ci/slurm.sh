#!/usr/bin/env bash
# slurm.sh up|down: a Slurm on this machine for tests, as root: no systemd, cgroups or database;
# loopback only; in $SLURM_CI_ROOT, stopped by pid.
#   eval "$(SLURM_CI_ROOT=/tmp/slurm .ci/slurm.sh up)"     sets SLURM_CONF: sbatch, squeue ... work
# Needs slurmctld, slurmd, slurm-client and munge (Debian's packages). SLURM_CI_NODES nodes (2) named
# n1 ..., each with SLURM_CI_CPUS CPUs (4) and SLURM_CI_GPUS GPUs (2, not real), partitions
#   main   the default; preempted by `high` at once
#   grace  preempted by `high` after SLURM_CI_GRACE seconds (30)
#   high   preempts both
set -euo pipefail
R=${SLURM_CI_ROOT:?a directory for this Slurm}
NODES=${SLURM_CI_NODES:-2} CPUS=${SLURM_CI_CPUS:-4} GPUS=${SLURM_CI_GPUS:-2}
P=${SLURM_CI_PORT:-26817} # this one, and those of the nodes from P + 11 on
H=$(hostname -s)
export SLURM_CONF=$R/slurm.conf

configure() {
  mkdir -p -m 755 "$R"/{munge,state,spool,log,run} # munged refuses a socket below a 0700 directory
  [ -f "$R/munge/key" ] || (umask 077; head -c 128 /dev/urandom > "$R/munge/key")
  for i in $(seq 0 $((GPUS - 1))); do # slurmd insists on devices
    [ -c "$R/gpu$i" ] || mknod "$R/gpu$i" c 195 "$i"
  done
  echo "Name=gpu File=$R/gpu[0-$((GPUS - 1))]" > "$R/gres.conf"
  # cred_expire: a requeued job waits for as long; 120 s by default, 5 s at least.
  cat > "$SLURM_CONF" <<C
ClusterName=ci
SlurmctldHost=$H(127.0.0.1)
SlurmctldPort=$P
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$R/munge/sock,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation=$R/state
SlurmdSpoolDir=$R/spool/%n
SlurmctldPidFile=$R/run/slurmctld.pid
SlurmdPidFile=$R/run/slurmd-%n.pid
SlurmctldLogFile=$R/log/slurmctld.log
SlurmdLogFile=$R/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
MaxArraySize=${SLURM_CI_ARRAY:-1001}
${SLURM_CI_PROLOG:+Prolog=$SLURM_CI_PROLOG}
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=${SLURM_CI_NODE_TIMEOUT:-10}
InactiveLimit=0
KillWait=${SLURM_CI_KILL_WAIT:-10}
MinJobAge=300
JobRequeue=1
Waittime=0
MessageTimeout=${SLURM_CI_MESSAGE_TIMEOUT:-10}
PropagateResourceLimits=NONE
$(for i in $(seq "$NODES"); do
    echo "NodeName=n$i NodeHostname=$H NodeAddr=127.0.0.1 Port=$((P + 10 + i)) CPUs=$CPUS" \
      "RealMemory=2000 Gres=gpu:$GPUS State=UNKNOWN"
  done)
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=grace Nodes=ALL MaxTime=INFINITE PriorityTier=1 GraceTime=${SLURM_CI_GRACE:-30}
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
C
}

start() {
  munged --key-file="$R/munge/key" --socket="$R/munge/sock" --pid-file="$R/munge/pid" \
    --log-file="$R/munge/log" --seed-file="$R/munge/seed" --num-threads=2 >&2
  slurmctld -c -f "$SLURM_CONF" >&2
  for i in $(seq "$NODES"); do
    mkdir -p "$R/spool/n$i"
    slurmd -f "$SLURM_CONF" -N "n$i" >&2
  done
  for _ in $(seq 300); do
    idle=$(timeout 2 sinfo -h -N -p main -t idle -o %N 2>/dev/null | wc -l) || true
    [ "$idle" = "$NODES" ] && return
    sleep 0.1
  done
  echo "Slurm did not come up" >&2
  tail -n 20 "$R"/log/*.log >&2
  exit 1
}

# Ends the daemons and waits for them, so that the directory can be removed.
stop() {
  pids=$(cat "$R"/run/slurmd-n*.pid "$R/run/slurmctld.pid" "$R/munge/pid" 2>/dev/null) || true
  for pid in $pids; do
    kill -CONT "$pid" 2>/dev/null && kill "$pid" 2>/dev/null || true
  done
  for pid in $pids; do
    for _ in $(seq 150); do kill -0 "$pid" 2>/dev/null || continue 2; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
  done
}

case ${1:-} in
  up) configure; start; echo "export SLURM_CONF=$SLURM_CONF" ;;
  down) stop ;;
  *) echo "usage: SLURM_CI_ROOT=DIR $0 up|down" >&2; exit 2 ;;
esac
