#!/usr/bin/env bash
# Installs Harmony from a build tree (deploy/setup.sh makes one), or takes it away again.
#
#   deploy/install.sh [--prefix DIR] [--build DIR] [--without-cuda]
#   deploy/install.sh --uninstall [--prefix DIR] [--keep-state | --remove-state]
#
#   --prefix DIR     where to; default /usr/local. With DESTDIR in the environment the files go below that, to be moved
#   --build DIR      the build tree; default: build/ beside deploy/
#   --without-cuda   leave out what computes on GPUs (half of the size), where the build has it
#   --keep-state, --remove-state   job database, logs and measured times of this user and of the service: do not ask
#
# What jobs wrote, which is in their output_dir, is never touched.
set -euo pipefail
umask 022
source_dir=$(realpath "$(dirname "$0")/..")

prefix=/usr/local build=$source_dir/build uninstall=0 cuda=1 state=ask

fail() {
  echo "install.sh: $1" >&2
  exit "${2:-1}"
}

while [ $# -gt 0 ]; do
  case $1 in
    --prefix=* | --build=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;;
    --prefix | --build)
      [ $# -ge 2 ] || fail "$1 needs a folder" 2
      if [ "$1" = --prefix ]; then prefix=$2; else build=$2; fi
      shift 2
      ;;
    --without-cuda) cuda=0 && shift ;;
    --uninstall) uninstall=1 && shift ;;
    --keep-state) state=keep && shift ;;
    --remove-state) state=remove && shift ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit 0 ;;
    *) fail "unknown option '$1': see --help" 2 ;;
  esac
done

[[ $prefix =~ ^/[A-Za-z0-9._/+@-]*$ ]] ||
  fail "--prefix '$prefix': a full path of letters, digits and ._/+@- is expected, for it stands in units of systemd" 2
prefix=$(realpath -ms "$prefix")
destdir=${DESTDIR:-}
[[ $destdir =~ ^(/.*)?$ ]] || fail "DESTDIR '$destdir': a full path is expected" 2
root=$(realpath -ms "$destdir/$prefix")
# Lines "file PATH" and "folder PATH" of all that was made here, relative to $root; "incomplete" while it is being made.
manifest=$root/lib/harmony/manifest
if [ "$prefix" = /usr ]; then configuration=$destdir/etc/harmony; else configuration=$root/etc/harmony; fi

refuse_while_running() {
  local running
  running=$("$source_dir/deploy/running.sh" "$root") || fail "$running"
}

# The folder itself, or the nearest above it that there is.
existing() {
  local folder=$1
  while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
  echo "$folder"
}

# ---- Installing ----

check_build() {
  local name first='' version
  command -v cmake >/dev/null || fail "there is no cmake: deploy/setup.sh installs it"
  [ -f "$build/CMakeCache.txt" ] || fail "$build is no build tree: deploy/setup.sh makes build/, or name yours by --build"
  for name in harmony harmony-coordinator harmony-worker harmony-swapper harmony-compare; do
    [ -x "$build/bin/$name" ] || fail "there is no program $build/bin/$name: deploy/setup.sh builds it"
  done
  [ -f "$build/documents/harmony.1.gz" ] || fail "there is no manual page in $build/documents: deploy/setup.sh makes it"
  for name in harmony harmony-coordinator harmony-worker harmony-swapper; do
    version=$("$build/bin/$name" --version) || fail "$build/bin/$name does not run: build it anew (deploy/setup.sh)"
    : "${first:=${version##* }}"
    [ "$first" = "${version##* }" ] ||
      fail "the programs in $build/bin are of several builds (harmony is $first, $name ${version##* }): build all (deploy/setup.sh)"
  done
}

check_target() {
  local parent free needed
  parent=$(existing "$root")
  [ -w "$parent" ] || fail "$parent is not writable for $(id -un): run it with sudo, or choose another --prefix"
  if [ ! -f "$manifest" ] && [ -e "$root/bin/harmony" ]; then
    fail "$root/bin/harmony is there, but not of this script: if a Debian package has put it there, 'apt remove harmony' first"
  fi
  needed=$(du -cLk "$build"/bin/harmony{,-*} "$(sed -n 's/^HARMONY_LIBTORCH:PATH=//p' "$build/CMakeCache.txt")"/lib/libtorch_cpu.so |
    tail -n 1 | cut -f 1)
  [ "$cuda" = 0 ] || [ ! -f "$build/lib/harmony/libharmony_cuda.so" ] || needed=$((needed * 2))
  free=$(df -Pk "$parent" | awk 'NR == 2 { print $4 }')
  [ -f "$manifest" ] || [ "$free" -gt "$needed" ] ||
    fail "$parent has $((free / 1024)) MiB of room and $((needed / 1024)) MiB are needed: free some, or choose another --prefix"
}

# Component by component, its files into the list $2.
copy_files() {
  local component=$1 list=$2 log
  if ! log=$(cmake --install "$build" --prefix "$prefix" --component "$component" 2>&1); then
    fail "copying files failed; what is there is incomplete, install again or --uninstall. $(tail -n 5 <<< "$log")"
  fi
  # Written by cmake to the build tree, where root's file would be in the way of the next who installs.
  sed "s|^$prefix/||" "$build/install_manifest_$component.txt" >> "$list"
  echo >> "$list"
  rm -f "$build/install_manifest_$component.txt"
}

# The folders of files, relative, and those above them.
folders_of() {
  local path
  while read -r path; do
    while path=$(dirname "$path") && [ "$path" != . ]; do echo "$path"; done
  done < "$1" | LC_ALL=C sort -u
}

install_all() {
  local work old='' file folder missing
  check_build
  check_target
  [ ! -f "$manifest" ] || refuse_while_running
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now
  trap "rm -rf '$work'" EXIT
  # What this installation makes, it takes away again; folders that are there before stay.
  if [ -d "$root" ]; then find "$root" -type d > "$work/before"; else : > "$work/before"; fi
  mkdir -p "$(dirname "$manifest")"
  [ ! -f "$manifest" ] || old=$(grep -v '^incomplete$' "$manifest" || true)
  printf 'incomplete\n%s\n' "$old" > "$manifest"

  copy_files harmony "$work/list"
  [ "$cuda" = 0 ] || [ ! -f "$build/lib/harmony/libharmony_cuda.so" ] || copy_files harmony_cuda "$work/list"
  echo lib/harmony/manifest >> "$work/list"
  # The configuration may be somebody's by now: it is no file of the list, but for its folders.
  grep -v -e '^$' -e '^/etc/' -e '^etc/harmony/' "$work/list" | LC_ALL=C sort -u > "$work/files"
  {
    sed 's/^/file /' "$work/files"
    { cat "$work/files" && [ "$prefix" = /usr ] || echo etc/harmony/cluster.yaml; } > "$work/all"
    folders_of "$work/all" | while read -r folder; do
      grep -qxF "$root/$folder" "$work/before" || echo "folder $folder"
    done
    [ -s "$work/before" ] || echo "folder ."
    grep '^folder ' <<< "$old" || true
  } | LC_ALL=C sort -u > "$work/manifest"
  # Files of the installation before that are no more.
  while read -r file; do
    grep -qxF "$file" "$work/files" || rm -f "$root/$file"
  done < <(sed -n 's/^file //p' <<< "$old")

  missing=$(ldd "$root"/bin/harmony{,-*} "$root"/lib/harmony/libtorch_cpu.so | grep 'not found' | sort -u || true)
  [ -z "$missing" ] || fail "the programs lack libraries, which deploy/setup.sh installs: $missing"
  mv "$work/manifest" "$manifest"
  chmod 644 "$manifest"
  echo "installed $("$root/bin/harmony" --version) in $root"
  say_what_next
}

say_what_next() {
  [ -z "$destdir" ] || return 0
  case :$PATH: in
    *":$prefix/bin:"*) echo "Begin with: harmony doctor; man harmony; $prefix/share/harmony/examples/job.yaml" ;;
    *) echo "Begin with: export PATH=\"$prefix/bin:\$PATH\"; harmony doctor; $prefix/share/harmony/examples/job.yaml" ;;
  esac
  echo "As a service: see deploy/systemd/README.md; its devices are in $configuration/cluster.yaml"
}

# ---- Uninstalling ----

# Whether systemd finds units of this installation.
is_service() {
  [ "$prefix" = /usr ] || [ "$prefix" = /usr/local ] ||
    find /etc/systemd/system -type l -lname "$prefix/lib/systemd/system/harmony*" 2>/dev/null | grep -q .
}

# Folders with what outlives processes: of who uninstalls (behind sudo, of who called it), and of the service.
state_folders() {
  local home=${HOME:-} folder service=''
  ! is_service || service=/var/lib/harmony
  [ -z "${SUDO_USER:-}" ] || home=$(getent passwd "$SUDO_USER" | cut -d : -f 6)
  for folder in "${HARMONY_STATE_DIR:-${XDG_STATE_HOME:-$home/.local/state}/harmony}" \
    "${XDG_CACHE_HOME:-$home/.cache}/harmony" "$home/.harmony" $service; do
    [ ! -d "$folder" ] || echo "$folder"
  done
}

# Another installation may have the same state: it must not lose it while it runs.
refuse_state_in_use() {
  local command
  for command in /proc/[0-9]*/cmdline; do
    if tr '\0' '\n' < "$command" 2>/dev/null | grep -qxF -- "$1"; then
      command=${command#/proc/}
      fail "process ${command%/cmdline} uses $1: stop it ('harmony down'), or --keep-state"
    fi
  done
}

ask_about_state() {
  local folders=("$@") answer
  [ "$state" = ask ] || return 0
  if [ ! -t 0 ]; then
    fail "there is state in ${folders[*]}: say --keep-state or --remove-state, for nobody can be asked here" 2
  fi
  echo "Job databases, logs and measured times are in:"
  du -sh "${folders[@]}" | sed 's/^/  /'
  read -r -p "Remove them, too? What jobs wrote to their output_dir stays. [y/N] " answer
  case $answer in
    [yY] | [yY][eE][sS]) state=remove ;;
    *) state=keep ;;
  esac
}

remove_unit_links() {
  local units="$prefix/lib/systemd/system/harmony*" link
  [ -z "$destdir" ] && [ -d /etc/systemd/system ] || return 0
  while read -r link; do
    rm -f "$link" || fail "$link starts a unit of $prefix and cannot be removed: run it with sudo"
  done < <(find /etc/systemd/system -type l -lname "$units")
  [ ! -d /run/systemd/system ] || systemctl daemon-reload || true
}

uninstall_all() {
  local folders=() kind path folder kept=()
  [ -f "$manifest" ] ||
    fail "there is no installation in $root ($manifest is missing): name its --prefix; a Debian package is removed by 'apt remove harmony'"
  ! grep -qx incomplete "$manifest" || fail "the installation in $root is incomplete: install again, and then uninstall"
  [ -w "$root/lib/harmony" ] || fail "$root/lib/harmony is not writable for $(id -un): run it with sudo"
  refuse_while_running
  if [ -z "$destdir" ]; then mapfile -t folders < <(state_folders); fi
  if [ ${#folders[@]} -gt 0 ]; then
    ask_about_state "${folders[@]}"
    if [ "$state" = remove ]; then
      for folder in "${folders[@]}"; do refuse_state_in_use "$folder"; done
      for folder in "${folders[@]}"; do
        rm -rf "$folder" || fail "$folder cannot be removed: run it with sudo, or --keep-state"
      done
    else
      kept=("${folders[@]}")
    fi
  fi
  if cmp -s "$configuration/cluster.yaml" "$root/share/harmony/examples/cluster.yaml" || [ "$state" = remove ]; then
    rm -f "$configuration/cluster.yaml"
  elif [ -f "$configuration/cluster.yaml" ]; then
    kept+=("$configuration/cluster.yaml")
  fi
  [ "$prefix" != /usr ] || rmdir "$configuration" 2>/dev/null || true
  remove_unit_links
  local folders_made=()
  while read -r kind path; do
    if [ "$kind" = file ]; then rm -f "$root/$path"; else folders_made+=("$(realpath -ms "$root/$path")"); fi
  done < <(LC_ALL=C sort -r "$manifest")
  # Deepest first; those that somebody else uses by now stay.
  [ ${#folders_made[@]} -eq 0 ] || rmdir --ignore-fail-on-non-empty "${folders_made[@]}" 2>/dev/null || true
  echo "uninstalled from $root"
  [ ${#kept[@]} -eq 0 ] || printf 'kept: %s\n' "${kept[@]}"
  [ -n "$destdir" ] || echo "State of other users, in ~/.local/state/harmony and ~/.cache/harmony, is theirs to remove."
}

if [ "$uninstall" = 1 ]; then uninstall_all; else install_all; fi
