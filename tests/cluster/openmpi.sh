#!/usr/bin/env bash
# Open MPI for the tests beside this file. As root:
#
#   openmpi.sh install   Debian's openmpi-bin; it starts nothing, and mpirun leaves nothing behind
set -euo pipefail

case ${1:-} in
install)
    command -v mpirun >/dev/null && exit
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openmpi-bin
    ;;
*) sed -n '2,4p' "$0"; exit 2 ;;
esac
