#!/usr/bin/env bash
# Checks for Java 17+ on JAVA_HOME or PATH; if it is missing, installs Debian's headless JRE (as root only).
set -euo pipefail
usable() { # path of a java binary
  local major
  major=$("$1" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java.specification.version = \([0-9]*\).*/\1/p') || return 1
  [ -n "$major" ] && [ "$major" -ge 17 ]
}
if [ -n "${JAVA_HOME:-}" ] && [ -x "$JAVA_HOME/bin/java" ] && usable "$JAVA_HOME/bin/java"; then exit 0; fi
if command -v java >/dev/null && usable "$(command -v java)"; then exit 0; fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing a headless Java runtime for Spark ..."
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq default-jre-headless; } >/dev/null
  command -v java >/dev/null && usable "$(command -v java)" && exit 0
fi
echo "Spark needs Java 17 or newer, and none was found. Install it (Debian/Ubuntu: sudo apt-get install default-jre-headless),"
echo "or set JAVA_HOME to an existing installation, and run the command again."
exit 1
