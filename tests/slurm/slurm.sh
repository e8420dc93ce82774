#!/usr/bin/env bash
# A Slurm cluster of one node, for tests: munged, slurmctld and slurmd with all their files in one folder.
#
#     bash tests/slurm/slurm.sh start FOLDER     starts the three, waits for the node, prints SLURM_CONF
#     bash tests/slurm/slurm.sh stop FOLDER      ends the three by their own process ids
#     SLURM_CONF=FOLDER/slurm.conf srun -n 2 hostname
#
# Needs Debian's packages: apt-get install --no-install-recommends slurm-wlm munge. Nothing of a Slurm or munge that the
# machine already runs is used or changed: the ports, the key and the socket are this cluster's own.
set -euo pipefail

PROGRAMS=(munged slurmctld slurmd)
WAIT_S=30
TASKS=4 # processors that the node claims to have, however few there are: two ranks and a second job beside them

export PATH="$PATH:/usr/sbin:/sbin"

usage() { sed -n 's/^#     //p' "$0" >&2; exit 2; }

missing() { for program in "${PROGRAMS[@]}" srun; do command -v "$program" > /dev/null || echo "$program"; done; }

free_ports() {
    python3 -c 'import socket
sockets = [socket.create_server(("", 0)) for _ in range(2)]
print(*(s.getsockname()[1] for s in sockets))'
}

write_key() {
    mkdir -p "$folder"/{state,spool}
    chmod 700 "$folder"
    (umask 077 && head -c 128 /dev/urandom > "$folder/munge.key")
}

write_configuration() {
    local node ports
    node=$(hostname -s)
    read -r -a ports <<< "$(free_ports)"
    cat > "$folder/slurm.conf" << END
ClusterName=one_node
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
# Nothing of the kernel that a container or an ordinary user may lack.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
# A step that was cancelled is killed this soon after SIGTERM.
KillWait=2
NodeName=$node NodeAddr=127.0.0.1 CPUs=$TASKS State=UNKNOWN
PartitionName=all Nodes=$node Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
END
}

start_programs() {
    munged --force --key-file "$folder/munge.key" --socket "$folder/munge.socket" --pid-file "$folder/munged.pid" \
        --log-file "$folder/munged.log" --seed-file "$folder/munge.seed"
    slurmctld -c -f "$folder/slurm.conf"
    slurmd -c -f "$folder/slurm.conf"
}

wait_for_the_node() {
    local deadline=$((SECONDS + WAIT_S))
    until sinfo --noheader --format %t 2> /dev/null | grep -qx idle; do
        if ((SECONDS > deadline)); then
            tail -n 5 "$folder"/*.log >&2
            exit 1
        fi
        sleep 0.2
    done
}

start() {
    local absent
    absent=$(missing)
    [[ -z $absent ]] || { echo "not installed: ${absent//$'\n'/ }" >&2; exit 3; }
    write_key
    write_configuration
    start_programs
    wait_for_the_node
    echo "SLURM_CONF=$folder/slurm.conf"
}

stop() {
    local program pid
    for program in slurmd slurmctld munged; do
        [[ -f $folder/$program.pid ]] || continue
        pid=$(cat "$folder/$program.pid")
        kill "$pid" 2> /dev/null || continue
        for _ in {1..50}; do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
        kill -9 "$pid" 2> /dev/null || true
    done
}

[[ $# -eq 2 && $1 =~ ^(start|stop)$ ]] || usage
mkdir -p "$2"
folder=$(cd "$2" && pwd)
export SLURM_CONF="$folder/slurm.conf"
"$1"
