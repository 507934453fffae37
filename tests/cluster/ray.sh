#!/usr/bin/env bash
# Ray for the tests beside this file:
#
#   ray.sh install DIR PYTHON   a virtual environment in DIR with PyPI's ray, which sees PYTHON's packages too;
#                               prints its interpreter
#
# Ray is started and ended by the tests themselves, with a HOME of their own: it writes a token there.
set -euo pipefail

case ${1:-} in
install)
    dir=${2:?install needs a directory} python=${3:?install needs an interpreter}
    if [ ! -x "$dir/bin/ray" ]; then
        "$python" -m venv "$dir"
        # addsitedir reads the .pth files that it finds there too, such as that of an editable install.
        "$python" -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
            >"$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
        "$dir/bin/python" -m pip install --disable-pip-version-check -q 'ray>=2.40'
    fi
    echo "$dir/bin/python"
    ;;
*) sed -n '2,7p' "$0"; exit 2 ;;
esac
