#!/usr/bin/env bash
# Names the processes that run programs of an installation, and says how to stop them. Exit code 1 when there are any.
#
#   running.sh PREFIX
set -euo pipefail
prefix=$(realpath -m "$1")

# The program of a process. The kernel tells it of one's own processes, root of all; of others the command line has to do.
program_of() {
  local path
  if path=$(readlink "/proc/$1/exe" 2>/dev/null); then
    echo "${path% (deleted)}"
  else
    { tr '\0' '\n' < "/proc/$1/cmdline" | head -n 1; } 2>/dev/null || true
  fi
}

# The launcher tells each of its processes.
runtime_dir_of() {
  { tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^HARMONY_RUNTIME_DIR=//p' | head -n 1; } 2>/dev/null || true
}

found=0
declare -A owner_of=()  # by runtime directory
for folder in /proc/[0-9]*; do
  pid=${folder#/proc/}
  case $(program_of "$pid") in
    "$prefix"/bin/harmony | "$prefix"/bin/harmony-*) ;;
    *) continue ;;
  esac
  command=$({ tr '\0' ' ' < "$folder/cmdline"; } 2>/dev/null) || continue  # it has ended meanwhile
  owner=$(stat -c %U "$folder" 2>/dev/null) || continue
  [ "$found" = 1 ] || echo "programs of $prefix are running:"
  found=1
  echo "  process $pid of $owner: ${command:0:160}"
  dir=$(runtime_dir_of "$pid")
  [ -z "$dir" ] || owner_of[$dir]=$owner
done
[ "$found" = 1 ] || exit 0

echo "Stop them, which waits for the running job's checkpoint:"
for dir in "${!owner_of[@]}"; do
  owner=${owner_of[$dir]}
  if [ "$dir" = /run/harmony ]; then
    echo "  systemctl stop harmony.service harmony.target"
  elif [ "$owner" = "$(id -un)" ]; then
    echo "  $prefix/bin/harmony --runtime-dir $dir down"
  else
    echo "  sudo -u $owner $prefix/bin/harmony --runtime-dir $dir down"
  fi
done
[ "${#owner_of[@]}" -gt 0 ] || echo "  harmony down, by who has started them"
exit 1
