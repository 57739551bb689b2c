#!/bin/sh
# Unpack the distribution's RabbitMQ and its Erlang into a directory; nothing is installed, no service is started.
set -eu
erlang="base asn1 crypto eldap inets mnesia os-mon parsetools public-key runtime-tools ssl syntax-tools tools xmerl"
packages="rabbitmq-server $(printf 'erlang-%s ' $erlang)"
mkdir -p "$1"
cd "$1"
[ ! -d usr/lib/rabbitmq ] || exit 0
rm -rf part && mkdir part && cd part
# shellcheck disable=SC2086  # they are words
apt-get download -q $packages || { apt-get update -q && apt-get download -q $packages; }
for package in *.deb; do dpkg -x "$package" root; done
mv root/usr .. && cd .. && rm -rf part
