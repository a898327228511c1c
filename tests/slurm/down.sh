#!/bin/sh
# Cancels all jobs of the Slurm that up.sh started under the folder $1, and stops it.
set -u
home=$(cd "$1" && pwd) || exit 1
PATH=$home/bin:$PATH

timeout 10 scancel --user="$(id -un)"
tries=60
while [ -n "$(timeout 5 squeue --noheader 2> /dev/null)" ] && [ "$tries" -gt 0 ]; do
    tries=$((tries - 1))
    sleep 0.1
done

end() { # the process whose id stands in a file
    [ -s "$1" ] || return 0
    process=$(cat "$1")
    kill "$process" 2> /dev/null
    for _ in $(seq 50); do
        kill -0 "$process" 2> /dev/null || break
        sleep 0.1
    done
    kill -9 "$process" 2> /dev/null
    rm -f "$1"
}
for file in "$home"/slurmd-one.pid "$home"/slurmd-two.pid "$home"/slurmctld.pid "$home"/munge/pid; do
    end "$file"
done
