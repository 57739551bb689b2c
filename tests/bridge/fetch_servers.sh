#!/bin/sh
# Unpack the distribution's RabbitMQ, Chromium without a screen, OpenSSH's server, tcpdump and Prometheus, with what
# they need that this machine lacks, into a directory: nothing is installed, no service is started.
set -eu
mkdir -p "$1"
cd "$1"
# Each that is not installed, by itself: a distribution may lack one. A file says that it was looked for here.
wishes=
for wish in rabbitmq-server chromium-headless-shell openssh-server tcpdump prometheus; do
    [ -e "$wish" ] || [ "$(dpkg-query -Wf '${db:Status-Status}' "$wish" 2>/dev/null)" = installed ] || wishes="$wishes $wish"
done
[ -n "$wishes" ] || exit 0
names() {
    for wish in $wishes; do
        apt-get install --simulate --no-install-recommends "$wish" || true
    done | awk '/^Inst/ {print $2}' | sort -u
}
# Where there are no lists of packages yet, or old ones, nothing is found.
fetch() { packages=$(names) && [ -n "$packages" ] && apt-get download -q $packages; }
rm -rf part && mkdir part && cd part
fetch || { apt-get update -q && fetch; }
for package in *.deb; do dpkg -x "$package" root; done
cp -a root/usr .. && cd .. && rm -rf part && touch $wishes
