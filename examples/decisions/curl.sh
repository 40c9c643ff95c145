#!/bin/sh
# The decision service by curl: sh curl.sh [http://127.0.0.1:9096]
set -eu
service=${1:-http://127.0.0.1:9096}/cortex.v1.DecisionService

ask() {
	curl -sS --max-time 1 -H 'Content-Type: application/json' ${CORTEX_TOKEN:+-H "Authorization: Bearer $CORTEX_TOKEN"} -d "$2" "$service/$1"
	echo
}

# May this attempt be made? If so, keep the token.
admitted=$(ask Admit '{"target": "whatsapp", "priority": 9}')
echo "$admitted"
token=$(echo "$admitted" | sed -n 's/.*"token": *"\([^"]*\)".*/\1/p')

# It went well, and took 38 ms.
ask Report "{\"token\": \"$token\", \"outcome\": \"success\", \"latency_ms\": 38}"

# Another was made without asking, and failed: is it worth trying again, and when?
ask Decide '{"target": "whatsapp", "priority": 5, "attempt": 0, "error": {"http_status": 429}, "retry_after": "3", "latency_ms": 12}'

# How are the targets?
ask List '{}'
