#!/usr/bin/env bash
# A Debian root that is thrown away, in namespaces of its own: enter.sh BASE PACKAGES CONSOLE boot|bare
#
# What is written goes into memory, above BASE; the network is a loopback that nobody else has. `boot` starts its systemd as
# process 1, in a control group of its own; `bare` only waits. PACKAGES is at /mnt.
set -euo pipefail

outer() {
    mount --make-rprivate /
    # One folder for both mounts, that of the groups and that of the root, gone with the namespace.
    local here=/mnt
    mount -t tmpfs -o mode=755 tmpfs "$here"
    mkdir "$here/groups" "$here/root" "$here/rw"
    mount -t cgroup2 cgroup2 "$here/groups"
    local group=$here/groups/plimsoll-package-$$
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
    unshare --mount --pid --fork --kill-child --net --uts --ipc --cgroup -- "$0" inner "$here" "$@" &
    local child=$!
    # The shell's own word about who was killed is nobody's concern.
    trap 'exec 2>/dev/null; kill -KILL $child || true; wait $child || true' TERM INT
    wait "$child" || true
    echo $$ >"$here/groups/cgroup.procs"
    # From the leaves; what just ended may still be on its way out.
    for _ in {1..50}; do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.1
    done
}

inner() {
    local here=$1 base=$2 packages=$3 console=$4 mode=$5 root=$1/root
    mkdir "$here/rw/upper" "$here/rw/work"
    mount -t overlay -o "lowerdir=$base,upperdir=$here/rw/upper,workdir=$here/rw/work" overlay "$root"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
    mount -t tmpfs -o mode=755 tmpfs "$root/run"
    mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
    mount --bind -o ro "$packages" "$root/mnt"
    devices "$root" "$console"
    ip link set lo up
    mkdir -p "$root/etc"
    echo "127.0.0.1 localhost" >"$root/etc/hosts"
    echo plimsoll-test >"$root/etc/hostname"
    # Debian's containers have one; without it each start waits for a machine's.
    echo "nameserver 127.0.0.1" >"$root/etc/resolv.conf"
    if [[ $mode == boot ]]; then
        exec env -i container=plimsoll-test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" /lib/systemd/systemd --log-target=console --show-status=true
    fi
    exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" sleep infinity
}

devices() {
    local root=$1 console=$2 name
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for name in null zero full random urandom tty; do
        : >"$root/dev/$name"
        mount --bind "/dev/$name" "$root/dev/$name"
    done
    mkdir "$root/dev/pts" "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
    ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    : >"$root/dev/console"
    mount --bind "$console" "$root/dev/console"
}

if [[ $1 == inner ]]; then
    shift
    inner "$@"
elif [[ $1 == outer ]]; then
    shift
    outer "$@"
else
    exec unshare --mount -- "$0" outer "$@"
fi
