#!/usr/bin/env bash
# kubectl for the tests beside this file. As root, where there is none yet:
#
#   kubectl.sh install   Debian's kubernetes-client; prints where kubectl is, and which one to the error output
set -euo pipefail

case ${1:-} in
install)
    if ! command -v kubectl >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends kubernetes-client >&2
    fi
    kubectl version --client >&2
    command -v kubectl
    ;;
*) sed -n '2,4p' "$0"; exit 2 ;;
esac
