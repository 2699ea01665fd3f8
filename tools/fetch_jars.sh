#!/usr/bin/env bash
# Fetches Apache Kafka (server and tools) and Spark's own Kafka connector with Maven.
# usage: fetch_jars.sh KAFKA_VERSION TARGET_DIR
set -euo pipefail
version=$1 target=$2
here=$(cd "$(dirname "$0")" && pwd)
command -v mvn >/dev/null || { echo "Maven is missing: install it (package 'maven') to fetch Apache Kafka $version"; exit 1; }
mkdir -p "$target"
target=$(cd "$target" && pwd)
echo "Fetching Apache Kafka $version and Spark's connector ..."
for part in pom:server connector:connector; do
  log="$target/maven-${part#*:}.log"
  mvn -q -B -f "$here/kafka/${part%:*}.xml" dependency:copy-dependencies -DoutputDirectory="$target/${part#*:}" >"$log" 2>&1 \
    || { cat "$log"; echo "Maven could not fetch the jars, see above"; exit 1; }
done
touch "$target/.complete"
