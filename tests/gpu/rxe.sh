#!/bin/sh
# Pipelines over soft RoCE (rdma_rxe), the kernel's RDMA over any Ethernet interface: the real libibverbs and the kernel's queue pairs in
# place of the stand-in. It needs root, for one link that it adds and takes away; without the module, or the `rdma` tool (iproute2), it
# says so and ends with status 77.
#
#     sh tests/gpu/rxe.sh --dtmc DTMC --make-data MAKE_DATA [--interface eth0]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dtmc=build/frontend/dtmc make_data=build/tests/make_data interface=
while [ $# -gt 0 ]; do
    case $1 in
    --dtmc) dtmc=$2 ;;
    --make-data) make_data=$2 ;;
    --interface) interface=$2 ;;
    *) echo "rxe.sh: $1?"; exit 2 ;;
    esac
    shift 2
done
skip() { echo "skipped: $*"; exit 77; }
command -v rdma >/dev/null || skip "there is no \`rdma\` (iproute2)"
[ "$(id -u)" = 0 ] || skip "adding a link of soft RoCE needs root"
[ -d /sys/module/rdma_rxe ] || modprobe rdma_rxe 2>/dev/null || skip "this kernel has no rdma_rxe"
# A GID that is not of the link alone comes from the interface's address: the one of the default route, else the first that is up.
[ "$interface" ] || interface=$(ip -o route show default 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -1)
[ "$interface" ] || interface=$(ip -o -4 addr show up scope global | awk '{ print $2; exit }')
[ "$interface" ] || skip "no Ethernet interface has an address; name one with --interface"
link=dtm_rxe
rdma link add $link type rxe netdev "$interface" || skip "no link of soft RoCE on $interface"
trap 'rdma link delete $link' EXIT
trap 'exit 1' HUP INT TERM
dtmc=$(cd "$(dirname "$dtmc")" && pwd)/$(basename "$dtmc")
make_data=$(cd "$(dirname "$make_data")" && pwd)/$(basename "$make_data")
echo "soft RoCE on $interface"
sh "$here/verbs/pipeline" --dtmc "$dtmc" --make-data "$make_data" --real
echo "pipelines over soft RoCE have the bits of those without"
