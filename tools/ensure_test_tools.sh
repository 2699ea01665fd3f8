#!/usr/bin/env bash
# Installs the tools that the tests compare with, if possible: Apache Kafka's jars (by Maven) and kcat.
# Tests skip missing tools with a reason; in CI (CI=true) a skip is a failure.
# usage: ensure_test_tools.sh KAFKA_VERSION JARS_DIR OLD_KAFKA_VERSION OLD_JARS_DIR
set -euo pipefail
version=$1 jars=$2 old_version=$3 old_jars=$4
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
need() { # command, Debian package
  command -v "$1" >/dev/null && return
  may_install || { echo "$1 is missing; the tests that use it are skipped"; return; }
  echo "Installing $2 ..."
  local attempt
  for attempt in 1 2 3; do
    apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$2" >/dev/null && return
    echo "Installing $2 failed (attempt $attempt of 3)"
    sleep $((attempt * 5))
  done
  echo "$2 could not be installed; the tests that use it are skipped"
}
need mvn maven
need kcat kcat
if { [ ! -e "$jars/.complete" ] || [ ! -d "$jars/streams" ]; } && command -v mvn >/dev/null; then
  bash "$(dirname "$0")/fetch_jars.sh" "$version" "$jars" || echo "The tests against Apache Kafka are skipped"
fi
if [ ! -e "$old_jars/.complete" ] && command -v mvn >/dev/null; then
  bash "$(dirname "$0")/fetch_jars.sh" "$old_version" "$old_jars" old || echo "The tests against Apache Kafka $old_version are skipped"
fi
