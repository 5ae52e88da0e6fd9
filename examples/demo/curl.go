package main

import "strings"

// manualGateway is where "taskgate serve" listens by default.
const manualGateway = "http://127.0.0.1:8080/mcp"

// curlScript returns the commands that show a task by hand, for a gateway at the given URL. The
// end-to-end tests run it.
func curlScript(gateway string) string {
	return strings.ReplaceAll(curlTemplate, "GATEWAY", gateway)
}

const curlTemplate = `# In two other terminals:
#   go run ./examples/slowserver
#   go run ./cmd/taskgate serve --upstream http://127.0.0.1:3001/mcp --grace 5s

mcp() { # METHOD NAME PARAMS: one request of a client that can take tasks
  curl -sS GATEWAY \
    -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \
    -H 'MCP-Protocol-Version: 2026-07-28' -H "Mcp-Method: $1" -H "Mcp-Name: $2" \
    -d '{"jsonrpc":"2.0","id":1,"method":"'"$1"'","params":{'"$3"',"_meta":{
      "io.modelcontextprotocol/protocolVersion":"2026-07-28",
      "io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}'
  echo
}

# A call of 12 s. After the grace of 5 s the answer is a task.
ANSWER=$(mcp tools/call research '"name":"research","arguments":{"topic":"tea","seconds":12}')
echo "$ANSWER"
TASK=$(echo "$ANSWER" | sed -n 's/.*"taskId":"\([^"]*\)".*/\1/p')

# How far it is, as often as you like; in the end the result is in the answer.
mcp tasks/get "$TASK" '"taskId":"'"$TASK"'"'
`
