#!/bin/sh
# Installs torch from one of its two locks, or downloads what that names: torch.sh PYTHON install|download [OPTIONS OF PIP].
# torch_cpu.txt, where this machine's indexes have the build for CPUs alone; else torch.txt, which is PyPI's. A file that is
# found and has none of the hashes is refused. A torch of the locked version that is installed already, of any build, stays.
set -eu
locks=$(cd "$(dirname "$0")" && pwd)
python=$1 what=$2
shift 2

is_there() {
    "$python" - "$(sed -n 's/^torch==\([^ ]*\).*/\1/p' "$locks/torch.txt")" 2>/dev/null <<'PYTHON'
import sys
from importlib.metadata import version

sys.exit(version("torch").partition("+")[0] != sys.argv[1])
PYTHON
}

get() { # lock, options of pip
    lock=$1
    shift
    "$python" -m pip --disable-pip-version-check "$what" -q --no-deps --require-hashes -r "$locks/$lock" "$@"
}

if [ "$what" = install ] && is_there; then exit 0; fi
if said=$(get torch_cpu.txt "$@" 2>&1); then exit 0; fi
case $said in
*"No matching distribution found for torch=="*) get torch.txt "$@" ;;
*)
    echo "$said" >&2
    echo "no torch was taken. If its build for CPUs is one that torch_cpu.txt does not name: make lock TORCH_CPU_WHEELS=PAGE" >&2
    exit 1
    ;;
esac
