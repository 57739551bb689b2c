#!/bin/sh
# Unpack the distribution's RabbitMQ, and Chromium without a screen, with what they need that this machine lacks, into a
# directory: nothing is installed, no service is started.
set -eu
mkdir -p "$1"
cd "$1"
[ ! -d usr ] || exit 0
# Each by itself: a distribution may lack one.
names() {
    for wish in rabbitmq-server chromium-headless-shell; do
        apt-get install --simulate --no-install-recommends "$wish" || true
    done | awk '/^Inst/ {print $2}' | sort -u
}
# Where there are no lists of packages yet, or old ones, nothing is found.
fetch() { packages=$(names) && [ -n "$packages" ] && apt-get download -q $packages; }
rm -rf part && mkdir part && cd part
fetch || { apt-get update -q && fetch; }
for package in *.deb; do dpkg -x "$package" root; done
mv root/usr .. && cd .. && rm -rf part
