#!/usr/bin/env bash
# Downloads the jars of Apache Kafka (server and tools; Kafka Streams with its tests) and Spark's Kafka connector with
# Maven, or one of these parts.
# usage: fetch_jars.sh KAFKA_VERSION TARGET_DIR [server|connector|old]; `old` is only the Kafka of kafka/old.xml
set -euo pipefail
version=$1 target=$2 only=${3:-}
here=$(cd "$(dirname "$0")" && pwd)
command -v mvn >/dev/null || { echo "Maven is missing: install it (package 'maven') to download Apache Kafka $version"; exit 1; }
mkdir -p "$target"
target=$(cd "$target" && pwd)
case $only in
  connector) parts=(connector:connector) what="Spark's connector" ;;
  old) parts=(old:server) what="Apache Kafka $version" ;;
  server) parts=(pom:server) what="Apache Kafka $version" ;;
  *) parts=(pom:server connector:connector streams:streams) what="Apache Kafka $version, its Streams and Spark's connector" ;;
esac
echo "Downloading $what ..."
for part in "${parts[@]}"; do
  log="$target/maven-${part#*:}.log"
  mvn -q -B -f "$here/kafka/${part%:*}.xml" dependency:copy-dependencies -DoutputDirectory="$target/${part#*:}" >"$log" 2>&1 \
    || { cat "$log"; echo "Maven could not download the jars; see above"; exit 1; }
done
[[ $only == server || $only == connector ]] || touch "$target/.complete"
