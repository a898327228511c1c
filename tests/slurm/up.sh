#!/bin/sh
# Starts a Slurm on this machine, with all its files under the folder $1: a controller and two nodes, `one` and `two`, which
# are both this machine. Each schedules two GPUs that do not exist; a job sees them in CUDA_VISIBLE_DEVICES. Partition
# `gpu`, the default, is node one; `wide` is both nodes. `. $1/env` puts the commands on the path; down.sh stops the Slurm.
# It needs Debian's packages slurmctld, slurmd, slurm-client and munge, and no systemd.
set -eu
mkdir -p "$1"
home=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
port=${PORT:-17817}
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$home/bin" "$home/munge" "$home/state"


# Snakemake's plugin takes all of Slurm's variables away before it calls srun, so each command brings its own.
cat > "$home/bin/command" <<END
#!/bin/sh
SLURM_CONF=$home/slurm.conf exec "/usr/bin/\${0##*/}" "\$@"
END
chmod 755 "$home/bin/command"
for command in sacct sacctmgr sbatch scancel scontrol sinfo squeue srun; do
    ln -sfn command "$home/bin/$command"
done
echo "export PATH=$home/bin:\$PATH" > "$home/env"
PATH=$home/bin:$PATH

sed -e "s|@HOME@|$home|g" -e "s|@HOST@|$(hostname -s)|g" -e "s|@USER@|$(id -un)|g" -e "s|@PORT@|$port|g" \
    -e "s|@PORT1@|$((port + 1))|g" -e "s|@PORT2@|$((port + 2))|g" "$here/slurm.conf.in" > "$home/slurm.conf"
echo "AutoDetect=off" > "$home/gres.conf"
echo "CgroupAutomount=no" > "$home/cgroup.conf"
for node in one two; do
    for gpu in 0 1; do
        ln -sfn /dev/null "$home/$node-gpu$gpu"
    done
    echo "NodeName=$node Name=gpu Type=pretended Flags=nvidia_gpu_env File=$home/$node-gpu[0-1]" >> "$home/gres.conf"
done

if [ ! -s "$home/munge/key" ]; then
    (umask 077 && head -c 128 /dev/urandom > "$home/munge/key")
fi
# Forced, since it insists on folders that everybody may enter, and those of tests are not.
munged --force --socket="$home/munge/socket" --key-file="$home/munge/key" --pid-file="$home/munge/pid" \
    --log-file="$home/munge/log" --seed-file="$home/munge/seed"
slurmctld -f "$home/slurm.conf"
for node in one two; do
    slurmd -f "$home/slurm.conf" -N "$node"
done

tries=150
until [ "$(sinfo --noheader --partition=wide --states=idle --format=%D 2> /dev/null)" = 2 ]; do
    tries=$((tries - 1))
    if [ "$tries" = 0 ]; then
        echo "error: Slurm did not come up" >&2
        tail -n 20 "$home"/*.log >&2
        exit 1
    fi
    sleep 0.1
done
